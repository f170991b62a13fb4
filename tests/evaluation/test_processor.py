"""What /proc/cpuinfo says of some processors, shortened."""

import pytest

from gr_jax.evaluation.processor import Processor, parse, processor


def cpuinfo(vendor, family, model, name, flags):
    lines = {"processor": 0, "vendor_id": vendor, "cpu family": family, "model": model, "model name": name}
    one, other = (
        "".join(f"{key}\t: {value}\n" for key, value in {**lines, "model": number, "flags": flags}.items())
        for number in (model, 99)
    )
    return f"{one}\n{other}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (cpuinfo("AuthenticAMD", 23, 49, "AMD EPYC", "sse2 avx avx2 fma"), "AMD EPYC (Zen 2, AVX2)"),
        (cpuinfo("AuthenticAMD", 25, 1, "AMD  EPYC", "sse2 avx avx2 fma"), "AMD EPYC (Zen 3, AVX2)"),
        (cpuinfo("AuthenticAMD", 25, 17, "AMD EPYC", "avx2 avx512f avx"), "AMD EPYC (Zen 4, AVX-512)"),
        (cpuinfo("AuthenticAMD", 26, 2, "AMD EPYC", "avx2 avx512f"), "AMD EPYC (Zen 5, AVX-512)"),
        (cpuinfo("GenuineIntel", 6, 106, "Xeon", "avx2 avx512f"), "Xeon (Ice Lake, AVX-512)"),
        (cpuinfo("GenuineIntel", 6, 1, "Xeon", "sse2"), "Xeon (family 6, model 1, SSE)"),
        ("processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n", "arm64 (NEON)"),
        ("", "arm64"),
    ],
)
def test_generation_and_vectors(text, expected):
    assert str(parse(text, "arm64")) == expected


def test_the_kind_says_nothing_of_the_name_unless_it_has_to():
    assert Processor("AMD EPYC", "Zen 4", "AVX-512").kind == "Zen 4, AVX-512"
    assert Processor("arm64", "", "").kind == "arm64"
    assert "\n" not in str(processor())
