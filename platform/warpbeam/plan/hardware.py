"""The catalogue of accelerators: what the makers' datasheets state, and names as people write them.

Peaks are dense (without sparsity), matrix products with fp32 accumulation, in FLOP/s. Bandwidths are bytes/s in one
direction for one accelerator: a datasheet's "900 GB/s NVLink" counts both directions and stands here as 450e9. Network
figures are those of the maker's reference system, since a chip alone has no network; a pool file may override anything
(`override`). Memory is what the driver offers, in GiB, a little below the number in the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from warpbeam.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator, as a rank sees it (one GCD of an MI250X, one core of a CPU).

    Attributes:
        family: the name without memory and form; `A100` of `A100-SXM-80GB`.
        generation: architecture, by which efficiencies are fitted.
        form: sxm, pcie, nvl (pairs of PCIe cards), oam, tpu or host.
        memory_gib: usable by a process.
        memory_bandwidth: of its own memory, bytes/s.
        peak_*: dense FLOP/s by precision; 0 where there are no such units.
        link_bandwidth: to its neighbours in the domain, bytes/s in one direction.
        link_domain: accelerators of one such domain (a node, or an NVL72 rack).
        nic_bandwidth: one accelerator's share of the network between nodes, bytes/s in one direction.
        host_bandwidth: to the host's memory, bytes/s in one direction.
        power_w: the power it may draw; 0 where the maker does not say.
    """

    name: str
    family: str
    generation: str
    form: str
    memory_gib: float
    memory_bandwidth: float
    peak_bf16: float
    peak_fp16: float
    peak_fp4: float
    peak_fp8: float
    peak_tf32: float
    peak_fp32: float
    link_bandwidth: float
    link_domain: int
    nic_bandwidth: float
    host_bandwidth: float
    power_w: float

    def peak(self, precision: str) -> float:
        """FLOP/s for `fp32`, `tf32`, `fp16`, `bf16`, `fp8` or `fp4` matrix products.

        Units that are missing fall back as frameworks do: fp4 to fp8, fp8 to bf16, and bf16 without such units (V100,
        Turing), fp16 (TPU) and tf32 to fp32.
        """
        return self.peak_fp32 if (used := self.used_precision(precision)) == "fp32" else getattr(self, f"peak_{used}")

    def used_precision(self, precision: str) -> str:
        """The precision whose units do the work asked for in `precision`."""
        if precision == "fp4" and not self.peak_fp4:
            precision = "fp8"
        if precision == "fp8" and not self.peak_fp8:
            precision = "bf16"
        return precision if getattr(self, f"peak_{precision}") else "fp32"

    @property
    def rack_scale(self) -> bool:
        """Fast links reach beyond one host."""
        return self.link_domain > 8 and self.form != "host"


def _chip(
    name: str,
    family: str,
    generation: str,
    form: str,
    *,
    gib: float,
    hbm: float,
    fp16: float,
    fp32: float,
    link: float,
    domain: int,
    nic: float,
    host: float,
    watts: float,
    bf16: float | None = None,
    fp4: float = 0.0,
    fp8: float = 0.0,
    tf32: float = 0.0,
) -> Chip:
    """A chip from its datasheet's units: GiB, GB/s and TFLOP/s."""
    return Chip(
        name=name,
        family=family,
        generation=generation,
        form=form,
        memory_gib=gib,
        memory_bandwidth=hbm * 1e9,
        peak_bf16=(fp16 if bf16 is None else bf16) * 1e12,
        peak_fp16=fp16 * 1e12,
        peak_fp4=fp4 * 1e12,
        peak_fp8=fp8 * 1e12,
        peak_tf32=tf32 * 1e12,
        peak_fp32=fp32 * 1e12,
        link_bandwidth=link * 1e9,
        link_domain=domain,
        nic_bandwidth=nic * 1e9,
        host_bandwidth=host * 1e9,
        power_w=watts,
    )


# Of several chips of one family the first is meant by the bare family name.
CHIPS: Final[tuple[Chip, ...]] = (
    # NVIDIA H100 Tensor Core GPU datasheet (2023), columns SXM5, PCIe and NVL; DGX H100: one 400 Gb/s NIC each, PCIe 5.
    _chip("H100-SXM-80GB", "H100", "hopper", "sxm", gib=79.1, hbm=3350, fp16=989.4, fp8=1978.9, tf32=494.7, fp32=66.9,
          link=450, domain=8, nic=50, host=64, watts=700),
    _chip("H100-PCIe-80GB", "H100", "hopper", "pcie", gib=79.1, hbm=2039, fp16=756, fp8=1513, tf32=378, fp32=51.2,
          link=64, domain=8, nic=25, host=64, watts=350),
    _chip("H100-NVL-94GB", "H100", "hopper", "nvl", gib=93.1, hbm=3938, fp16=835, fp8=1671, tf32=418, fp32=60,
          link=300, domain=2, nic=25, host=64, watts=400),
    # The 500 W module of some clouds, HBM2e (torchtitan docs/performance.md); its makers quote the SXM peaks.
    _chip("H100-SXM-96GB-500W", "H100", "hopper", "sxm", gib=94.5, hbm=2400, fp16=989.4, fp8=1978.9, tf32=494.7,
          fp32=66.9, link=450, domain=8, nic=50, host=64, watts=500),
    # NVIDIA H800 and H20: an H100 with a 400 GB/s NVLink; H20 datasheet (2023): fewer SMs, 96 GB.
    _chip("H800-SXM-80GB", "H800", "hopper", "sxm", gib=79.1, hbm=3350, fp16=989.4, fp8=1978.9, tf32=494.7, fp32=66.9,
          link=200, domain=8, nic=50, host=64, watts=700),
    _chip("H20-96GB", "H20", "hopper", "sxm", gib=95.0, hbm=4000, fp16=148, fp8=296, tf32=74, fp32=44,
          link=450, domain=8, nic=50, host=64, watts=400),
    # NVIDIA H200 datasheet (2024), SXM; its NVL column for the PCIe card.
    _chip("H200-SXM-141GB", "H200", "hopper", "sxm", gib=139.8, hbm=4800, fp16=989.4, fp8=1978.9, tf32=494.7, fp32=66.9,
          link=450, domain=8, nic=50, host=64, watts=700),
    _chip("H200-NVL-141GB", "H200", "hopper", "nvl", gib=139.8, hbm=4800, fp16=835.5, fp8=1671, tf32=418, fp32=60,
          link=450, domain=4, nic=25, host=64, watts=600),
    # NVIDIA GH200 datasheet (2023): an H100 with 96 GB beside a Grace CPU over NVLink-C2C (450 GB/s each way).
    _chip("GH200-96GB", "GH200", "hopper", "sxm", gib=94.5, hbm=4000, fp16=989.4, fp8=1978.9, tf32=494.7, fp32=66.9,
          link=450, domain=1, nic=50, host=450, watts=900),
    # NVIDIA DGX B200 datasheet (2024), an eighth of it: 1.44 TB, 72 PFLOP/s FP8 (sparse), 14.4 TB/s NVLink.
    _chip("B200-SXM-180GB", "B200", "blackwell", "sxm", gib=178.4, hbm=7700, fp16=2250, fp4=9000, fp8=4500,
          tf32=1125, fp32=75, link=900, domain=8, nic=50, host=64, watts=1000),
    # NVIDIA GB200 NVL72 datasheet (2024), a 72nd: 13.4 TB HBM3e, 720 PFLOP/s FP8 (sparse); C2C to Grace shared by two.
    _chip("GB200-186GB", "GB200", "blackwell", "sxm", gib=184.0, hbm=8000, fp16=2500, fp4=10000, fp8=5000,
          tf32=1250, fp32=80, link=900, domain=72, nic=50, host=225, watts=1200),
    # NVIDIA DGX B300 datasheet (2025), an eighth: 2.3 TB, 72 PFLOP/s FP8 (sparse); 800 Gb/s ConnectX-8 each.
    _chip("B300-SXM-270GB", "B300", "blackwell", "sxm", gib=268.0, hbm=8000, fp16=2250, fp4=13500, fp8=4500,
          tf32=1125, fp32=75, link=900, domain=8, nic=100, host=128, watts=1100),
    # NVIDIA GB300 NVL72 datasheet (2025), a 72nd: 20 TB HBM3e, 720 PFLOP/s FP8 (sparse), 800 Gb/s each.
    _chip("GB300-279GB", "GB300", "blackwell", "sxm", gib=277.0, hbm=8000, fp16=2500, fp4=15000, fp8=5000,
          tf32=1250, fp32=80, link=900, domain=72, nic=100, host=225, watts=1400),
    # NVIDIA A100 datasheet (2021), columns SXM and PCIe; DGX A100: one 200 Gb/s NIC each, PCIe 4.
    _chip("A100-SXM-80GB", "A100", "ampere", "sxm", gib=79.1, hbm=2039, fp16=312, tf32=156, fp32=19.5,
          link=300, domain=8, nic=25, host=32, watts=400),
    _chip("A100-SXM-40GB", "A100", "ampere", "sxm", gib=39.4, hbm=1555, fp16=312, tf32=156, fp32=19.5,
          link=300, domain=8, nic=25, host=32, watts=400),
    _chip("A100-PCIe-80GB", "A100", "ampere", "pcie", gib=79.1, hbm=1935, fp16=312, tf32=156, fp32=19.5,
          link=32, domain=8, nic=12.5, host=32, watts=300),
    _chip("A100-PCIe-40GB", "A100", "ampere", "pcie", gib=39.4, hbm=1555, fp16=312, tf32=156, fp32=19.5,
          link=32, domain=8, nic=12.5, host=32, watts=250),
    # CINECA Leonardo's custom A100 (SC23 paper): 64 GB, 4 in a node, 2 x 200 Gb/s for four.
    _chip("A100-SXM-64GB", "A100", "ampere", "sxm", gib=63.4, hbm=1640, fp16=312, tf32=156, fp32=19.5,
          link=300, domain=4, nic=12.5, host=32, watts=440),
    # NVIDIA A800: an A100 with a 400 GB/s NVLink.
    _chip("A800-SXM-80GB", "A800", "ampere", "sxm", gib=79.1, hbm=2039, fp16=312, tf32=156, fp32=19.5,
          link=200, domain=8, nic=25, host=32, watts=400),
    _chip("A800-SXM-40GB", "A800", "ampere", "sxm", gib=39.4, hbm=1555, fp16=312, tf32=156, fp32=19.5,
          link=200, domain=8, nic=25, host=32, watts=400),
    # NVIDIA A10G in AWS G5 (product brief): 70 TFLOP/s; G5.48xlarge: 100 Gb/s for eight. A10 datasheet (2021).
    _chip("A10G-24GB", "A10G", "ampere-pcie", "pcie", gib=22.0, hbm=600, fp16=70, tf32=35, fp32=31.2,
          link=32, domain=8, nic=1.56, host=32, watts=300),
    _chip("A10-24GB", "A10", "ampere-pcie", "pcie", gib=22.0, hbm=600, fp16=125, tf32=62.5, fp32=31.2,
          link=32, domain=8, nic=12.5, host=32, watts=150),
    # NVIDIA A40, RTX A6000 and RTX A4000 datasheets (2021).
    _chip("A40-48GB", "A40", "ampere-pcie", "pcie", gib=44.4, hbm=696, fp16=149.7, tf32=74.8, fp32=37.4,
          link=32, domain=8, nic=12.5, host=32, watts=300),
    _chip("A6000-48GB", "A6000", "ampere-pcie", "pcie", gib=47.5, hbm=768, fp16=154.8, tf32=77.4, fp32=38.7,
          link=32, domain=8, nic=12.5, host=32, watts=300),
    _chip("A4000-16GB", "A4000", "ampere-pcie", "pcie", gib=15.7, hbm=448, fp16=76.7, tf32=38.3, fp32=19.2,
          link=32, domain=8, nic=12.5, host=32, watts=140),
    # NVIDIA Ampere GA102 whitepaper (RTX 3090: half rate with fp32 accumulation).
    _chip("RTX3090-24GB", "3090", "ampere-pcie", "pcie", gib=23.7, hbm=936, fp16=71, tf32=35.6, fp32=35.6,
          link=16, domain=8, nic=12.5, host=32, watts=350),
    # NVIDIA Ada GPU architecture whitepaper (RTX 4090: half rate with fp32 accumulation) and
    # RTX 6000 Ada datasheet (2023).
    _chip("RTX4090-24GB", "4090", "ada", "pcie", gib=23.6, hbm=1008, fp16=165.2, fp8=330.3, tf32=82.6, fp32=82.6,
          link=16, domain=8, nic=12.5, host=32, watts=450),
    _chip("RTX6000Ada-48GB", "6000ADA", "ada", "pcie", gib=47.5, hbm=960, fp16=364.2, fp8=728.5, tf32=182.1, fp32=91.1,
          link=32, domain=8, nic=12.5, host=32, watts=300),
    # NVIDIA RTX Blackwell whitepaper (RTX 5090: half rate with fp32 accumulation).
    _chip("RTX5090-32GB", "5090", "blackwell-pcie", "pcie", gib=31.4, hbm=1792, fp16=209.5, fp4=838, fp8=419,
          tf32=104.8, fp32=104.8, link=32, domain=8, nic=12.5, host=64, watts=575),
    # NVIDIA L4 and L40S datasheets (2023), halved where they count sparsity.
    _chip("L4-24GB", "L4", "ada", "pcie", gib=22.0, hbm=300, fp16=121, fp8=242, tf32=60, fp32=30.3,
          link=32, domain=8, nic=1.56, host=32, watts=72),
    _chip("L40S-48GB", "L40S", "ada", "pcie", gib=44.4, hbm=864, fp16=362, fp8=733, tf32=183, fp32=91.6,
          link=32, domain=8, nic=12.5, host=32, watts=350),
    _chip("L40-48GB", "L40", "ada", "pcie", gib=44.4, hbm=864, fp16=181, fp8=362, tf32=90.5, fp32=90.5,
          link=32, domain=8, nic=12.5, host=32, watts=300),
    # NVIDIA V100 datasheet (2020), SXM2 and PCIe; DGX-1 and DGX-2: 100 Gb/s for two; no bf16 and no tf32 units.
    _chip("V100-SXM-32GB", "V100", "volta", "sxm", gib=31.7, hbm=900, fp16=125, bf16=0, fp32=15.7,
          link=150, domain=8, nic=6.25, host=16, watts=300),
    _chip("V100-SXM-16GB", "V100", "volta", "sxm", gib=15.8, hbm=900, fp16=125, bf16=0, fp32=15.7,
          link=150, domain=8, nic=6.25, host=16, watts=300),
    _chip("V100-PCIe-32GB", "V100", "volta", "pcie", gib=31.7, hbm=900, fp16=112, bf16=0, fp32=14,
          link=16, domain=8, nic=6.25, host=16, watts=250),
    _chip("V100-PCIe-16GB", "V100", "volta", "pcie", gib=15.8, hbm=900, fp16=112, bf16=0, fp32=14,
          link=16, domain=8, nic=6.25, host=16, watts=250),
    # NVIDIA Turing whitepaper (TITAN RTX) and T4 datasheet (2019).
    _chip("TitanRTX-24GB", "TITANRTX", "turing", "pcie", gib=23.6, hbm=672, fp16=130.5, bf16=0, fp32=16.3,
          link=16, domain=8, nic=6.25, host=16, watts=280),
    _chip("T4-16GB", "T4", "turing", "pcie", gib=14.6, hbm=320, fp16=65, bf16=0, fp32=8.1,
          link=16, domain=8, nic=3.1, host=16, watts=70),
    # AMD Instinct MI250X datasheet (2021), half of it: one GCD is one device. Frontier: 4 x 200 Gb/s for eight.
    _chip("MI250X-64GB", "MI250X", "cdna2", "oam", gib=64.0, hbm=1638, fp16=191.5, tf32=0, fp32=47.9,
          link=50, domain=8, nic=12.5, host=36, watts=280),
    # AMD Instinct MI300X (2023), MI325X (2024) and MI355X (2025) datasheets; seven Infinity Fabric links in a node.
    _chip("MI300X-192GB", "MI300X", "cdna3", "oam", gib=191.7, hbm=5300, fp16=1307.4, fp8=2614.9, tf32=653.7,
          fp32=163.4, link=448, domain=8, nic=50, host=64, watts=750),
    _chip("MI325X-256GB", "MI325X", "cdna3", "oam", gib=255.7, hbm=6000, fp16=1307.4, fp8=2614.9, tf32=653.7,
          fp32=163.4, link=448, domain=8, nic=50, host=64, watts=1000),
    _chip("MI355X-288GB", "MI355X", "cdna4", "oam", gib=287.6, hbm=8000, fp16=2516.6, fp4=10066.3, fp8=5033.2,
          tf32=0, fp32=157.3, link=537, domain=8, nic=50, host=64, watts=1400),
    # Google Cloud TPU system architecture pages (v4, v5e, v5p, v6e): ICI of a chip over all its links, both directions
    # halved; the domain is a pod; beyond it the data-centre network. fp32 products take six bf16 passes.
    _chip("TPU-v4", "TPUV4", "tpu", "tpu", gib=32.0, hbm=1228, fp16=0, bf16=275, fp32=45.8,
          link=150, domain=4096, nic=3.1, host=16, watts=192),
    _chip("TPU-v5e", "TPUV5E", "tpu", "tpu", gib=16.0, hbm=819, fp16=0, bf16=197, fp32=32.8,
          link=100, domain=256, nic=3.1, host=16, watts=0),
    _chip("TPU-v5p", "TPUV5P", "tpu", "tpu", gib=95.0, hbm=2765, fp16=0, bf16=459, fp32=76.5,
          link=300, domain=8960, nic=6.25, host=16, watts=0),
    _chip("TPU-v6e", "TPUV6E", "tpu", "tpu", gib=32.0, hbm=1640, fp16=0, bf16=918, fp32=153,
          link=224, domain=256, nic=6.25, host=32, watts=0),
    # One core of a server CPU: two 512-bit FMA units at 2.5 GHz sustained, an eighth-channel of DDR5-4800, 25 Gb/s for
    # a machine of 16. Machines differ by a lot: `warpbeam calibrate` corrects it.
    _chip("cpu", "CPU", "cpu", "host", gib=4.0, hbm=6, fp16=0, bf16=0, fp32=0.16,
          link=5, domain=64, nic=0.2, host=6, watts=0),
)  # fmt: skip

# Names that say no chip: a class by its memory, as people label a table's column; and GH200's, whose driver states the
# host's memory.
_BY_BEGINNING: Final = {
    "NVIDIAGH200": "GH200-96GB",
    "24GBCLASS": "RTX3090-24GB",
    "40GBCLASS": "A100-SXM-40GB",
    "80GBCLASS": "A100-SXM-80GB",
}
_SYNONYMS: Final = {
    "TPUV5LITEPOD": "TPUV5E",
    "TPUTRILLIUM": "TPUV6E",
    "V5E": "TPUV5E",
    "V5P": "TPUV5P",
    "V6E": "TPUV6E",
}
_MEMORY: Final = re.compile(r"(?<![A-Z0-9])(\d{2,3})\s*(?:G(?:I?B)?)?(?![A-Z0-9])")
_FORMS: Final = {"SXM": "sxm", "PCIE": "pcie", "NVL": "nvl"}
_MEMORY_SLACK: Final = 0.12  # a name's number is nominal: 80 for 79.1, 192 for 178


def find_chip(name: str) -> Chip:
    """The chip a name means, however it is spelt: `H100`, `h100-sxm`, `NVIDIA A100-SXM4-80GB`, `A100 40GB`, `TPU v5e`.

    The first family named decides; memory and form (SXM, PCIe, NVL) choose within it, and what is not said takes the
    family's first entry. Raises UserError for an unknown name, or a memory size the family was never built with.
    """
    text = name.upper()
    squeezed = re.sub(r"[^A-Z0-9]", "", text)
    for chip in CHIPS:
        if squeezed == re.sub(r"[^A-Z0-9]", "", chip.name.upper()):
            return chip
    for beginning, known in _BY_BEGINNING.items():
        if squeezed.startswith(beginning):
            return find_chip(known)
    family, rest = _family(text)
    chosen = [chip for chip in CHIPS if chip.family == family]
    if form := next((form for word, form in _FORMS.items() if word in squeezed), None):
        chosen = [chip for chip in chosen if chip.form == form] or chosen
    if stated := _MEMORY.search(rest):
        wanted = float(stated[1])
        chosen = [chip for chip in chosen if abs(chip.memory_gib - wanted) <= _MEMORY_SLACK * wanted]
        chosen.sort(key=lambda chip: round(abs(chip.memory_gib - wanted)))
    if not chosen:
        raise _unknown(name)
    return chosen[0]


def override(chip: Chip, **values: Any) -> Chip:
    """The chip with what a pool states in the place of the datasheet's; raises UserError for a name that is none."""
    if unknown := [key for key in values if key not in Chip.__dataclass_fields__]:
        raise UserError(
            f"a chip has no figure `{unknown[0]}`",
            fix=f"it has {', '.join(Chip.__dataclass_fields__)}",
            reason="unknown_chip_figure",
        )
    return replace(chip, **{key: value for key, value in values.items() if value is not None})


def _family(text: str) -> tuple[str | None, str]:
    """The family whose name comes first in the text (of two at one place, the longer), and the text without it: the
    100 of `H-100` is no memory.
    """
    found: list[tuple[int, int, int, str]] = []
    spellings = {chip.family: chip.family for chip in CHIPS} | _SYNONYMS
    for spelling, family in spellings.items():
        spaced = r"[\s_-]*".join(spelling)
        before = r"(?<![A-Z0-9])" if spelling[0].isalpha() else r"(?<![0-9])"
        if match := re.search(before + spaced + r"(?=$|[^A-Z0-9]|_|SXM|PCIE|NVL|HBM|\d\dG|\d\d\dG)", text):
            found.append((match.start(), -len(spelling), match.end(), family))
    if not found:
        return None, text
    begin, _, end, family = min(found)
    return family, f"{text[:begin]} {text[end:]}"


def _unknown(name: str) -> UserError:
    names = {re.sub(r"[^A-Z0-9]", "", chip.name.upper()): chip.name for chip in CHIPS}
    names |= {chip.family: chip.name for chip in reversed(CHIPS)}
    near = get_close_matches(re.sub(r"[^A-Z0-9]", "", name.upper()), names, n=6, cutoff=0.5)
    fix = f"the nearest names are {', '.join(dict.fromkeys(names[key] for key in near))}" if near else ""
    return UserError(
        f"the planner's catalogue has no accelerator `{name}`",
        fix=fix or f"it knows {', '.join(_first_names())}",
        reason="unknown_accelerator",
    )


def _first_names() -> list[str]:
    """One name of each family, in the catalogue's order."""
    found: dict[str, str] = {}
    for chip in CHIPS:
        found.setdefault(chip.family, chip.name)
    return list(found.values())
