from __future__ import annotations

from exporter.connections import Connections


class Line:
    """A connection that remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def filled(at_most: int, addresses: list[str]) -> tuple[Connections, list[Line]]:
    connections, lines = Connections(at_most), [Line() for _ in addresses]
    for line, address in zip(lines, addresses, strict=True):
        assert connections.admit(line, address)
    return connections, lines


def test_connections_are_admitted_up_to_the_bound_without_closing_any() -> None:
    connections, lines = filled(3, ["a", "a", "b"])
    assert len(connections) == 3
    assert not any(line.closed for line in lines)


def test_a_newcomer_takes_the_place_of_the_one_idle_longest_of_the_busiest_address() -> None:
    connections, lines = filled(4, ["prometheus", "x", "x", "y"])
    assert connections.admit(Line(), "probe")
    assert [line.closed for line in lines] == [False, True, False, False]
    assert len(connections) == 4


def test_a_connection_that_is_answering_is_never_closed_for_another() -> None:
    connections, lines = filled(2, ["x", "x"])
    connections.begin(lines[0])
    assert connections.admit(Line(), "y")
    assert [line.closed for line in lines] == [False, True]


def test_with_all_places_busy_the_newcomer_is_closed() -> None:
    connections, lines = filled(2, ["x", "y"])
    for line in lines:
        connections.begin(line)
    newcomer = Line()
    assert not connections.admit(newcomer, "z")
    assert newcomer.closed
    assert not any(line.closed for line in lines)


def test_a_connection_that_just_answered_is_the_last_to_go() -> None:
    connections, lines = filled(2, ["x", "x"])
    connections.begin(lines[0])
    connections.end(lines[0])
    connections.admit(Line(), "y")
    assert [line.closed for line in lines] == [False, True]


def test_the_deadline_closes_only_who_has_never_sent_a_whole_head() -> None:
    connections, (silent, asked) = filled(2, ["x", "y"])
    connections.begin(asked)
    connections.end(asked)
    connections.drop_if_silent(silent)
    connections.drop_if_silent(asked)
    assert (silent.closed, asked.closed, len(connections)) == (True, False, 1)


def test_a_connection_that_closed_itself_frees_its_place() -> None:
    connections, lines = filled(1, ["x"])
    connections.forget(lines[0])
    assert connections.admit(Line(), "y")
    connections.drop_if_silent(lines[0])
    connections.end(lines[0])
    assert not lines[0].closed
