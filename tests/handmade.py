"""Model folders and tables written by hand, and the analyses drawn from them: what the tests of claims share."""

import json

import numpy as np
import pandas as pd

from compolens import recipes, tables
from compolens.foundation import map_files, versions
from compolens.foundation.builtin import built_in
from compolens.foundation.configs import describe
from compolens.foundation.table_files import TableFiles


def write_map(folder, table, **described):
    """A map's folder: its table, and a config.json with this description."""
    config = {
        "format": 1,
        "kind": "map",
        "title": "planted",
        "learned": 0.9,
        "generalized": 0.9,
        "predicted": [],
        "measures": {},
    }
    folder.mkdir(parents=True)
    map_files.write(folder, config | {"keep": [], "cells": {}} | described, table, None, {"environments": [], "command": ""})
    return folder


def write(folder, run):
    """A model's folder, with stand-ins for what no analysis reads."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"format": 1, "run": describe(run)}))
    (folder / "scores.json").write_text(json.dumps({"score": run.task.score_name, "parameters": 1000}))
    (folder / "weights.safetensors").write_bytes(b"weights")
    return folder


def save(folder, name, rows, **common):
    """A fresh table; `common`: columns that every row has unless it says otherwise."""
    provenance = {
        "weights": tables.file_digest(folder / "weights.safetensors"),
        **versions.describe(built_in("probes")[name]),
    }
    known = {"lo": np.nan, "hi": np.nan, "n": 10, "site": "somewhere", "role": "answers", "step": 2} | common
    tables.save(folder, name, pd.DataFrame([known | row for row in rows]), provenance)


def put_back(path, frame):
    """Another table in the place of one, as if it had been measured so."""
    table = TableFiles(path.parent, path.stem)
    table.write(table.provenance(), {"table": frame.to_csv(index=False).encode()})


def analyze(name, folders, **options):
    return recipes.load_recipe("analyses", name)(list(folders), **options)


def marks(drawing, mark, **where):
    """What the drawing's marks of a kind show."""
    frame = drawing.frame().fillna({"label": ""})
    frame = frame[frame["mark"] == mark]
    for column, value in where.items():
        frame = frame[frame[column] == value]
    return frame
