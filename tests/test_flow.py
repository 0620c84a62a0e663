"""What holds for the flow of every graph: those of the catalogue, of the samples, and random ones."""

from jointgraph import JointGraphIndex
from tests.cases.case import Case
from tests.flow_oracle import check_flow
from tests.graphs import snapshot
from tests.models import Sample
from tests.test_cases import every_graph


@every_graph
def test_what_is_defined_by_search_holds_for_the_catalogue(case: Case, number: int) -> None:
    """Phases, boundary, sources, sinks, derived sets, chains and uses are as defined, and asking changes nothing."""
    graph = case.graphs[number]
    before = snapshot(graph)
    check_flow(JointGraphIndex(graph))
    assert snapshot(graph) == before


def test_what_is_defined_by_search_holds_for_the_samples(any_sample: Sample) -> None:
    """The same for common models."""
    check_flow(any_sample.index())
