"""The fields of a model as JSON values and arrays, and back.

They are saved in the model's folder (`ivvi.dynamics.saved_model`), and in the folder of a policy,
which includes its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ivvi._io.files import Saved
from ivvi._io.serialization import Unpacker
from ivvi.categories import CodedColumn
from ivvi.errors import InputError
from ivvi.features.feature_map import FeatureMap

NAMES = (
    *("state", "action", "outputs", "unidentified", "refused", "instrument", "ends"),
    *("doubts", "reward_doubts"),
)
FLAGS = ("has_reward", "global_instrument", "derived")
SAMPLES = ("states", "starts", "acted", "instruments", "followed")
"""Arrays that hold rows of the log."""
ARRAYS = ("W", "noise_cov", "bread", *SAMPLES)


def pack_model(fields: Mapping[str, Any]) -> Saved:
    """Return the fields of a model as JSON values and arrays."""
    if not np.isfinite(fields["W"]).all():
        raise InputError("the model is not written: its weights are not finite numbers")
    verdict = fields["verdict"]
    document = {
        "phi": fields["phi"].to_json(),
        **{name: list(fields[name]) for name in NAMES},
        **{name: fields[name] for name in FLAGS},
        "length": fields["length"],
        "carried": [list(pair) for pair in fields["carried"]],
        "coded": [asdict(category) for category in fields["coded"]],
        "verdict": None if verdict is None else asdict(verdict),
    }
    arrays = {name: fields[name] for name in ARRAYS}
    W_cov = fields["W_cov"]
    return document, arrays if W_cov is None else {**arrays, "W_cov": W_cov}


def unpack_model(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the fields of a model from the result of `pack_model`.

    Names and flags that are newer than the file are left out, and get the model's defaults.
    """
    from ivvi.diagnostics import Verdict  # here: a model alone needs no diagnostics

    fields: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
    read = Unpacker({})
    fields |= {
        name: read.unpack(tuple[str, ...], document[name]) for name in NAMES if name in document
    }
    fields |= {name: read.unpack(bool, document[name]) for name in FLAGS if name in document}
    fields["length"] = read.unpack(int, document["length"])
    fields["carried"] = read.unpack(tuple[tuple[str, str], ...], document["carried"])
    fields["coded"] = tuple(read.unpack(CodedColumn, column) for column in document["coded"])
    verdict = document.get("verdict")
    fields["phi"] = FeatureMap.from_json(document["phi"])
    fields["verdict"] = None if verdict is None else read.unpack(Verdict, verdict)
    fields["W_cov"] = arrays.get("W_cov")
    return fields
