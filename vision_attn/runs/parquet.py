"""The lines of results.jsonl in columns: results.parquet, where pyarrow is installed."""

import json
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from vision_attn.files import replacing

__all__ = ["write_parquet"]

AT_ONCE = 8192  # records that are in memory while they are written
TYPES = {
    "file": "string",
    "method": "string",
    "options": "string",  # as JSON
    "weights": "string",
    "predicted": "string",
    "predicted_index": "int32",
    "probability": "float64",
    "unlike": "string",
    "label": "string",
    "label_index": "int32",
    "target": "string",
    "target_index": "int32",
    "contrast": "string",
    "contrast_index": "int32",
    "prefix_mass": "float64",
    "outlier_mass": "float64",
    "completeness_gap": "float64",
    "left_out": "string",  # as JSON
    "unproven": "bool",
    "note": "string",
    "seconds": "float64",
    "picture": "string",
    "row": "int64",
    "map_scale": "float64",
}


def write_parquet(folder: Path) -> Path | None:
    """Write results.jsonl of a folder as results.parquet; None where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        return None
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    schema = pyarrow.schema(list(TYPES.items()))
    path = folder / "results.parquet"
    with (
        (folder / "results.jsonl").open("rb") as lines,
        replacing(path) as beside,
        ParquetWriter(beside, schema, compression="zstd") as writer,
    ):
        records = map(_flat, lines)
        while some := list(islice(records, AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))
    return path


def _flat(line: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(line)
    record["options"] = json.dumps(record.get("options", {}), ensure_ascii=False)
    if "left_out" in record:
        record["left_out"] = json.dumps(record["left_out"])
    return record
