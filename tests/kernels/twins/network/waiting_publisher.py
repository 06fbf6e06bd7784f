"""`count_acked`, frame by frame on `bytes`."""

from __future__ import annotations

import numpy as np

from seawall.kernels.network import waiting_publisher as kernel
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values


def count_acked(progress: Values, answers: Bytes, version: int) -> int:
    """Count the complete frames; move an incomplete one to the front."""
    data = answers[: int(progress[kernel.PIPELINE_RECEIVED])].tobytes()
    while len(data) >= 44 and len(data) >= (size := 44 + int.from_bytes(data[32:36], "little")):
        if data[5] != 8:
            return 0
        number = int.from_bytes(data[12:20], "little") - int(progress[kernel.PIPELINE_FIRST]) + 1
        progress[kernel.PIPELINE_ACKED] = int(progress[kernel.PIPELINE_ACKED]) + 1 if version == 1 else number
        data = data[size:]
    answers[: len(data)] = np.frombuffer(data, np.uint8)
    progress[kernel.PIPELINE_RECEIVED] = len(data)
    return 1
