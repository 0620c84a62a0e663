"""What jointgraph costs."""
