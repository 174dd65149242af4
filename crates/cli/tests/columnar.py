"""Reads a folder of results with pandas and polars: python3 crates/cli/tests/columnar.py out/bottleneck/latest

`make columnar` installs both into .venv and runs this.
"""

import pathlib
import sys

import pandas
import polars

folder = pathlib.Path(sys.argv[1])
names = sorted(path.stem for path in folder.glob("*.parquet"))
assert names == ["circuits", "latency", "metrics", "relays", "series", "transfers"], names
for name in names:
    plain = pandas.read_csv(folder / f"{name}.csv")
    by_pandas = pandas.read_parquet(folder / f"{name}.parquet")
    by_polars = polars.read_parquet(folder / f"{name}.parquet")
    assert list(by_pandas.columns) == list(plain.columns) == by_polars.columns, name
    assert len(by_pandas) == len(plain) == len(by_polars), name
    for column in plain.columns:
        if len(plain) == 0:
            continue
        assert by_polars[column].to_list()[0] == by_pandas[column].iloc[0] or plain[column].isna().iloc[0], (name, column)
        if by_pandas[column].dtype.kind == "f":
            assert ((plain[column] - by_pandas[column]).abs().fillna(0) <= 1e-12 * by_pandas[column].abs().fillna(0)).all(), (name, column)
        elif by_pandas[column].dtype.kind in "iu":
            assert (plain[column] == by_pandas[column]).all(), (name, column)
        else:
            # CSV does not tell an empty text from a missing one.
            texts = [data[column].astype(object).fillna("") for data in (plain, by_pandas)]
            assert (texts[0] == texts[1]).all(), (name, column)
    print(f"{name}: {len(plain)} rows, {len(plain.columns)} columns")
