"""By which id a board goes: GPU-<index> when it is first seen, and the same for as long as the exporter knows its UUID.

NVML numbers boards anew when a driver is loaded, and a board that fell off the bus moves all behind it: an index is no
name. `nvml.py` keeps one table for the life of the process; what an earlier process knew comes with the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class BoardNames:
    """UUID -> id, and the id that is expected at an index before the board there was touched."""

    def __init__(self) -> None:
        self._of_uuid: dict[str, str] = {}
        self._at_index: dict[int, str] = {}

    def learn(self, known: Iterable[str]) -> None:
        """Take over what an earlier process gave: texts of the form "<uuid>=<id>"."""
        for text in known:
            uuid, _, device_id = text.rpartition("=")
            if uuid and device_id:
                self._of_uuid.setdefault(uuid, device_id)

    def expected(self, index: int) -> str:
        """Who was at this index last; at the start, who is to be expected there."""
        return self._at_index.get(index, f"GPU-{index}")

    def settle(self, uuids: Mapping[int, str], reserved: Collection[str] = ()) -> dict[int, str]:
        """Index -> id of the boards that were just found (index -> UUID, "" where it could not be read).

        A known board keeps its id. A new one takes that of its index, or the next that is free: ids of boards that are not
        there any more are, except those in `reserved`, whose boards were not looked at.

        >>> names = BoardNames()
        >>> names.settle({0: "a", 1: "b"}), names.settle({0: "b", 1: "a"}), names.settle({0: "b", 1: "c"})
        ({0: 'GPU-0', 1: 'GPU-1'}, {0: 'GPU-1', 1: 'GPU-0'}, {0: 'GPU-1', 1: 'GPU-0'})
        """
        ids = {i: self._of_uuid[uuid] for i, uuid in uuids.items() if uuid in self._of_uuid}
        taken = {*ids.values(), *reserved}
        for index, uuid in uuids.items():
            if index not in ids:
                wishes = (self.expected(index), f"GPU-{index}", *(f"GPU-{k}" for k in range(len(uuids) + len(taken))))
                ids[index] = next(wish for wish in wishes if wish not in taken)
                taken.add(ids[index])
                if uuid:
                    self._of_uuid = {u: i for u, i in self._of_uuid.items() if i != ids[index]}
                    self._of_uuid[uuid] = ids[index]
        self._at_index |= ids
        return ids
