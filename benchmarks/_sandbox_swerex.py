"""Times SWE-ReX's local runtime, in a virtual environment of its own: prints {"cold_ms": …, "exec_ms": …} as JSON.

    python _sandbox_swerex.py COLD_STARTS COMMANDS

Cold is from nothing to the result of the first command in a bash session; exec is one more command in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import time

from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

logging.disable(logging.CRITICAL)
TRUE = BashAction(command="true")


async def start() -> LocalRuntime:
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=30.0))
    await runtime.run_in_session(TRUE)
    return runtime


async def main(starts: int, commands: int) -> None:
    cold, live = [], []
    for _ in range(starts):
        began = time.perf_counter()
        runtime = await start()
        cold.append(time.perf_counter() - began)
        await runtime.close()
    runtime = await start()
    for _ in range(commands):
        began = time.perf_counter()
        await runtime.run_in_session(TRUE)
        live.append(time.perf_counter() - began)
    await runtime.close()
    figures = {"cold_ms": statistics.median(cold) * 1000, "exec_ms": statistics.median(live) * 1000}
    print(json.dumps(figures))


asyncio.run(main(*map(int, sys.argv[1:])))
