"""Which processor this is: a model's name alone ("AMD EPYC") stands for machines of which one is thrice as fast."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import platform
from collections.abc import Mapping

_CPUINFO = pathlib.Path("/proc/cpuinfo")
# (vendor, family) → the first model of each generation, ascending, as the makers' manuals number them.
_GENERATIONS: Mapping[tuple[str, int], tuple[tuple[int, str], ...]] = {
    ("AuthenticAMD", 0x17): ((0x00, "Zen or Zen+"), (0x30, "Zen 2")),
    ("AuthenticAMD", 0x19): ((0x00, "Zen 3"), (0x10, "Zen 4"), (0x20, "Zen 3"), (0x60, "Zen 4")),
    ("AuthenticAMD", 0x1A): ((0x00, "Zen 5"),),
}
_INTEL = {
    63: "Haswell", 79: "Broadwell", 85: "Skylake or Cascade Lake", 106: "Ice Lake", 108: "Ice Lake",
    143: "Sapphire Rapids", 173: "Granite Rapids", 174: "Granite Rapids", 207: "Emerald Rapids",
}  # fmt: skip
# The widest first: /proc/cpuinfo's flag, its name.
_VECTORS = (
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
    ("avx", "AVX"),
    ("sse2", "SSE"),
    ("sve", "SVE"),
    ("asimd", "NEON"),
)


@dataclasses.dataclass(frozen=True)
class Processor:
    """A CPU.

    Attributes:
      name: as it calls itself.
      generation: the core's, "Zen 4"; its family and model where they are not known here; "" where nothing is said.
      vectors: the widest vector instructions, "AVX-512"; "" where nothing is said.
    """

    name: str
    generation: str
    vectors: str

    @property
    def kind(self) -> str:
        """What its speed depends on: generation and width of vectors, or its name where neither is known."""
        return ", ".join(filter(None, (self.generation, self.vectors))) or self.name

    def __str__(self) -> str:
        return self.name if self.kind == self.name else f"{self.name} ({self.kind})"


@functools.cache
def processor() -> Processor:
    """This machine's."""
    try:
        text = _CPUINFO.read_text()
    except OSError:
        text = ""
    return parse(text, platform.processor() or platform.machine() or "unknown CPU")


def parse(cpuinfo: str, name: str = "unknown CPU") -> Processor:
    """The first processor of a text like Linux' /proc/cpuinfo.

    Args:
      cpuinfo: lines "name : value", processors apart by empty lines.
      name: where the text says none.
    """
    lines = cpuinfo.partition("\n\n")[0].splitlines()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(said.get("flags", said.get("Features", "")).split())
    return Processor(
        name=" ".join(said.get("model name", name).split()),
        generation=_generation(said),
        vectors=next((width for flag, width in _VECTORS if flag in flags), ""),
    )


def _generation(said: Mapping[str, str]) -> str:
    try:
        family, model = int(said["cpu family"]), int(said["model"])
    except (KeyError, ValueError):
        return ""
    known = _GENERATIONS.get((said.get("vendor_id", ""), family), ())
    if said.get("vendor_id") == "GenuineIntel" and family == 6:
        known = ((model, _INTEL[model]),) if model in _INTEL else ()
    found = [generation for first, generation in known if first <= model]
    return found[-1] if found else f"family {family}, model {model}"
