"""Brings the prices of `client/spothop/catalog/vms.csv` up to date, from CSV files as the public
repository skypilot-org/skypilot-catalog has them:

    python tests/support/catalog_file.py --source "COMMIT of DATE" --aws F [--azure F] [--gcp F]

VM types and regions are those of our file: a line that is added to it by hand, with its sizes and
`region=0.001` for a region, gets its prices here. Facts only: what has no price there keeps the one
it has. Its traps: prices of placeholders (700.0), rows without a price, zones instead of regions,
and on GCP GPUs that are rows of their own, to be added to their machine's.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from spothop.catalog.needs import gpu_name
from spothop.catalog.table import COLUMNS, Catalogue, VmType, rows

FILE = Path(__file__).parents[2] / "client" / "spothop" / "catalog" / "vms.csv"
PLACEHOLDER = 700.0
Source = tuple[dict[tuple[str, str], float], dict[tuple[str, float, str], float]]


def prices_of(text: str) -> Source:
    """Of machines by (type, region), and of GPUs by (what the name comes down to, count, region).
    Where zones differ, the lowest."""
    machines: dict[tuple[str, str], float] = {}
    gpus: dict[tuple[str, float, str], float] = {}
    for row in csv.DictReader(io.StringIO(text)):
        price = float(row["Price"] or 0)
        if not price or price == PLACEHOLDER:
            continue
        region = row["Region"]
        if row["InstanceType"]:
            machine = (row["InstanceType"], region)
            machines[machine] = min(price, machines.get(machine, price))
        elif row["AcceleratorName"] and not row["AcceleratorName"].startswith("tpu"):
            gpu = (_key(row["AcceleratorName"]), float(row["AcceleratorCount"]), region)
            gpus[gpu] = min(price, gpus.get(gpu, price))
    return machines, gpus


def renewed(each: VmType, regions: Iterable[str], source: Source) -> dict[str, float]:
    """The prices of a VM type, with those of the source in place of what was known before."""
    machines, gpus = source
    found = dict(each.prices)
    for region in regions:
        price = machines.get((each.vm, region))
        if price is not None and each.cloud == "gcp" and each.shape.gpus:
            gpu = gpus.get((_card(each), float(each.shape.gpus), region))
            price = price + gpu if gpu is not None else None
        if price is not None:
            found[region] = price
    return found


def text_of(catalogue: Catalogue, head: str, sources: Mapping[str, str], source: str) -> str:
    """The whole file. `sources`: cloud -> the text of its CSV file."""
    out = io.StringIO()
    out.write(head)
    out.writelines(f"# {cloud}: prices of {source}\n" for cloud in sorted(sources))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    found = {cloud: prices_of(text) for cloud, text in sources.items()}
    for each in catalogue.types:
        regions = {r for t in catalogue.types if t.cloud == each.cloud for r in t.prices}
        prices = renewed(each, regions, found[each.cloud]) if each.cloud in found else each.prices
        writer.writerow(_line(each, prices))
    return out.getvalue()


def _line(each: VmType, prices: Mapping[str, float]) -> tuple[str, ...]:
    shape = each.shape
    gpu = (shape.gpu, f"{shape.gpus}", f"{shape.gpu_memory_gib:g}") if shape.gpus else ("", "", "")
    size = (f"{shape.cpus:g}", f"{shape.memory_gib:g}", shape.arch)
    return (each.cloud, each.vm, *gpu, *size, _told(prices), _told(each.spot_prices))


def _told(prices: Mapping[str, float]) -> str:
    return " ".join(f"{region}={_usd(prices[region])}" for region in sorted(prices))


def _usd(price: float) -> str:
    return f"{price:.6f}".rstrip("0").rstrip(".")


def _key(accelerator: str) -> str:
    """A100 and A100-80GB differ there as they do here."""
    name = gpu_name(accelerator)
    return f"{name.key}-{name.memory_gib}" if name.memory_gib else name.key


def _card(each: VmType) -> str:
    key = gpu_name(each.shape.gpu).key
    return f"{key}-80" if key == "a100" and each.shape.gpu_memory_gib == 80 else key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for cloud in ("aws", "azure", "gcp"):
        parser.add_argument(f"--{cloud}", type=Path)
    parser.add_argument("--source", required=True, help="commit and date of the files")
    args = vars(parser.parse_args())
    given = {cloud: args[cloud] for cloud in ("aws", "azure", "gcp") if args[cloud]}
    sources = {cloud: file.read_text(encoding="utf-8") for cloud, file in given.items()}
    text = FILE.read_text(encoding="utf-8")
    head = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    known = Catalogue(()).corrected(rows(text))
    FILE.write_text(text_of(known, head, sources, args["source"]), encoding="utf-8")


if __name__ == "__main__":
    main()
