"""Tools of real MCP servers: one from PyPI inside a sandbox, one of the official SDK over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys

import pytest

from missing import skip_or_fail
from turngym.envs.tool.mcp import connect, install
from turngym.envs.tool.toolbox import Toolbox
from turngym.errors import ConfigError, EnvFault, MissingDependency
from turngym.sandbox import Limits, backend
from turngym.sandbox.bubblewrap import Bubblewrap

TIME = ["python3", "-m", "mcp_server_time", "--local-timezone", "UTC"]
LIMITS = Limits(disk_mib=256)
HTTP_SERVER = """
import sys
from mcp.server import MCPServer
server = MCPServer("sums")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def divide(a: int, b: int) -> float:
    "Divide two numbers."
    return a / b

server.run("streamable-http", port=int(sys.argv[1]))
"""


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def bubblewrap() -> Bubblewrap:
    reason = Bubblewrap.unavailable()
    if reason is not None:
        skip_or_fail(f"bubblewrap: {reason}")
    return Bubblewrap()


def test_a_server_from_pypi_runs_in_a_sandbox(bubblewrap):
    async def body():
        async with await bubblewrap.create(LIMITS) as box:
            variables = await install(box, "mcp-server-time")
            async with connect(TIME, sandbox=box, env=variables) as tools:
                toolbox = Toolbox(tools)
                convert = {"source_timezone": "UTC", "time": "12:30", "target_timezone": "Asia/Tokyo"}
                good = await toolbox.answer(call("convert_time", **convert))
                both = await toolbox.answer(
                    call("convert_time", **convert) + call("get_current_time", timezone="UTC")
                )
                nowhere = await toolbox.answer(call("get_current_time", timezone="Nowhere/Land"))
                short = await toolbox.answer(call("convert_time", source_timezone="UTC"))
                typo = await toolbox.answer(call("get_curent_time", timezone="UTC"))
            after = await (await box.interpreter()).run("'_server' in dir()")
            async with connect(TIME, sandbox=box, env=variables) as tools:
                await (await box.interpreter()).run("_server.process.kill()")
                with pytest.raises(EnvFault, match="the MCP server is gone"):
                    await Toolbox(tools).answer(call("get_current_time", timezone="UTC"))
            return good, both, nowhere, short, typo, after

    good, both, nowhere, short, typo, after = asyncio.run(body())
    assert json.loads(good.text)["target"]["datetime"].endswith("21:30:00+09:00")
    assert [result.error for result in both.results] == [None, None]
    assert nowhere.errors == ("refused",)
    assert "Nowhere/Land" in nowhere.text
    assert short.errors == ("bad_arguments",)
    assert "'target_timezone' is missing" in short.text
    assert typo.errors == ("unknown_tool",)
    assert "get_current_time" in typo.text
    assert after.display["text/plain"] == "False"


def test_a_server_is_spoken_to_over_http():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    server = subprocess.Popen([sys.executable, "-c", HTTP_SERVER, str(port)], stderr=subprocess.DEVNULL)

    async def listening() -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                await writer.wait_closed()
                return

    async def body():
        await asyncio.wait_for(listening(), 60)
        async with connect(url) as tools:
            toolbox = Toolbox(tools)
            return [
                await toolbox.answer(call("add", a=2, b=3)),
                await toolbox.answer(call("divide", a=1, b=0)),
                await toolbox.answer(call("add", a=2)),
            ]

    try:
        added, divided, short = asyncio.run(body())
    finally:
        server.terminate()
        server.wait()
    assert added.text.strip() == "5"
    assert divided.errors == ("refused",)
    assert short.errors == ("bad_arguments",)
    with pytest.raises(EnvFault, match=f"no MCP server answers at {url}"):
        asyncio.run(body_of_nobody(url))


async def body_of_nobody(url: str) -> None:
    async with connect(url):
        pass


def test_a_command_that_is_no_server_is_a_fault(bubblewrap):
    async def body():
        async with await bubblewrap.create(LIMITS) as box:
            with pytest.raises(EnvFault, match="no MCP server answers"):
                async with connect(["true"], sandbox=box):
                    pass
            with pytest.raises(EnvFault, match="no-such-program"):
                async with connect(["no-such-program"], sandbox=box):
                    pass

    asyncio.run(body())


def test_a_command_without_a_sandbox_is_refused():
    with pytest.raises(ConfigError, match="needs a sandbox"):
        asyncio.run(body_of_nobody(TIME))


def test_a_package_that_is_not_here_is_named():
    async def body():
        async with await backend("unsafe-process").create() as box:
            await install(box, "no-such-package-at-all")

    with pytest.raises(MissingDependency, match="pip install no-such-package-at-all"):
        asyncio.run(body())
