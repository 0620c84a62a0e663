"""The tests of jointgraph."""
