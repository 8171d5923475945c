"""Field ids of NVML that mean another quantity in another driver branch, and the branches in which we know what they mean.

The NVML sources ask for fields of 250 and below by number: these never moved. Above that the numbers of 24 names changed
between 570, 575 and 580.82 (history of nvml.h in NVIDIA/go-nvml), and a wrong one is answered with success for another
quantity: where a branch is not in the table, it is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_VERSION = re.compile(r"(\d{3,4})\.(\d{1,4})(\.\d+)*", re.ASCII)

# (first, last) driver (branch, minor), both included: name -> field id.
_BRANCHES: tuple[tuple[tuple[int, int], tuple[int, int], Mapping[str, int]], ...] = (
    ((570, 0), (570, 9999), {"power_smoothing": 251}),
    ((580, 82), (580, 9999), {"power_smoothing": 251, "hw_thermal": 270, "power_brake": 271}),
    ((590, 0), (9999, 9999), {"power_smoothing": 251, "hw_thermal": 270, "power_brake": 271}),
)


def renumbered_fields(driver_version: str) -> Mapping[str, int]:
    """Ids of the fields above 250 that this driver is known to number so; none for any other text.

    NVML_FI_PWR_SMOOTHING_ENABLED, NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN and _HW_POWER_BRAKE_SLOWDOWN.

    >>> sorted(renumbered_fields("580.95.05")), renumbered_fields("580.65.06"), renumbered_fields("570.172.08")
    (['hw_thermal', 'power_brake', 'power_smoothing'], {}, {'power_smoothing': 251})
    """
    match = _VERSION.fullmatch(driver_version.strip())
    if match is None:
        return {}
    version = int(match[1]), int(match[2])
    return next((ids for first, last, ids in _BRANCHES if first <= version <= last), {})
