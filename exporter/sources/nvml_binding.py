"""The door to NVML: loads libnvidia-ml.so.1 through its Python binding and looks up functions in it.

`nvml.py` makes one Library per process. pynvml is imported here and nowhere else, and only when a Library is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from collections.abc import Callable
from typing import Any


class LoadError(Exception):
    """The binding or the library cannot be loaded; the message is a reason in snake case, `detail` names the culprit.

    hint: what to change, where that is known.
    """

    def __init__(self, reason: str, detail: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
        self.hint = hint


# Where the library lies when the loader does not look there: WSL, the driver container of NVIDIA's operator, and GKE.
KNOWN_PLACES = (
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
)


class Library:
    """libnvidia-ml.so.1, loaded as pynvml loads it; functions are looked up through the binding."""

    def __init__(self, path: str | None) -> None:
        self._binding = _import_binding()
        if path is not None and self._binding.nvmlLib is None:
            try:
                self._binding.nvmlLib = ctypes.CDLL(path)
            except OSError as error:
                raise LoadError("library_not_found", str(error)) from error
        try:
            self._binding._LoadNvmlLibrary()
        except self._binding.NVMLError as error:
            self._binding.nvmlLib = _load_from_known_places()
            if self._binding.nvmlLib is None:
                raise LoadError("library_not_found", "libnvidia-ml.so.1") from error

    def function(self, name: str) -> Callable[..., int] | None:
        """The pointer to a function; None where this library has none of that name."""
        try:
            return self._binding._nvmlGetFunctionPointer(name)  # type: ignore[no-any-return]
        except self._binding.NVMLError:
            return None


def _load_from_known_places() -> ctypes.CDLL | None:
    for path in KNOWN_PLACES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    return None


def _import_binding() -> Any:
    """The module pynvml of nvidia-ml-py. An older package of the same name may shadow it, and lacks what we need."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the PyPI package "pynvml" announces its end with a FutureWarning
            import pynvml
    except ImportError as error:
        raise LoadError("binding_not_installed", "nvidia-ml-py") from error
    if not hasattr(pynvml, "_nvmlGetFunctionPointer") or not hasattr(pynvml, "_LoadNvmlLibrary"):
        place = str(getattr(pynvml, "__file__", pynvml))
        raise LoadError("foreign_pynvml_package", place, f"{place} is an old package of the name pynvml that hides the "
                        f"binding of nvidia-ml-py: uninstall pynvml, then install nvidia-ml-py again")
    return pynvml
