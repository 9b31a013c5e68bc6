"""Tools of a Model Context Protocol server (https://modelcontextprotocol.io), by the official `mcp` package.

    async with connect(["python3", "-m", "mcp_server_time"], sandbox=box) as tools:
        toolbox = Toolbox(tools)

A server that is given as a command runs inside a sandbox of its own; one that is given as a URL is spoken to over
streamable HTTP. Every tool becomes a `Tool` with the server's own schema: its arguments are checked before the server
sees them, what the server calls an error is a `ToolError` that the policy reads, and a server that is gone is an
`EnvFault`.

The connection belongs to the event loop and the task that opened it. What is not here: prompts, resources, and
requests of the server to its client (sampling, elicitation), which the SDK refuses. A running server is state that a
fork can't carry; see `Sandbox.allow_replay`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any

from turngym.envs.tool.tools import Tool, ToolError, render
from turngym.errors import ConfigError, EnvFault, MissingDependency
from turngym.sandbox import Interpreter, Sandbox

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import Transport
    from mcp.shared.message import SessionMessage

PACKAGES = "/home/agent/packages"
"""Where `install` puts packages."""
_START_WITHIN_S = 60.0
_WAIT_S = 1.0
_OUT = "/tmp/.mcp-out"
_LOG = "/tmp/.mcp-log"
# Runs in the sandbox's Python session: one cell starts the server, the others pass lines on.
_HELPER = """
import os, select, subprocess
class _Server:
    def __init__(self, argv, env):
        log = open({log!r}, "wb")
        self.process = subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=log, bufsize=0, env={{**os.environ, **env}})
        self.rest = b""
    def exchange(self, lines, wait_s):
        for line in lines: self.process.stdin.write(line.encode() + b"\\n")
        heard, patience = b"", wait_s
        while select.select([self.process.stdout], [], [], patience)[0]:
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data: raise EOFError("the server has ended")
            heard += data
            patience = 0 if b"\\n" in heard else wait_s
        whole, _, self.rest = (self.rest + heard).rpartition(b"\\n")
        with open({out!r}, "wb") as file: file.write(whole)
"""


@asynccontextmanager
async def connect(
    server: str | Sequence[str],
    *,
    sandbox: Sandbox | None = None,
    env: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> AsyncIterator[list[Tool]]:
    """The tools of a server, while the connection is open.

    Args:
        server: its URL, or the command that starts it and speaks over its standard streams.
        sandbox: where the command runs; its Python session is the server's for as long.
        env: variables of the command, beside the sandbox's own.
        timeout_s: seconds that one call may take.

    Raises:
        MissingDependency: the `mcp` package is not installed.
        ConfigError: a command without a sandbox.
        EnvFault: the server did not start, or can't be reached.
    """
    try:
        import mcp  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingDependency(f"{error}. To get it: pip install 'turngym[mcp]'") from error
    if not isinstance(server, str) and sandbox is None:
        raise ConfigError("a server that is a command needs a sandbox to run in: connect(command, sandbox=…)")
    async with AsyncExitStack() as stack:
        transport: Transport | str
        if isinstance(server, str):
            transport = server
        else:
            assert sandbox is not None, "checked above"
            transport = _inside(sandbox, list(server), env or {})
        try:
            client = await stack.enter_async_context(mcp.Client(transport, read_timeout_seconds=timeout_s))
            found = await _list(client)
        except Exception as error:
            raise EnvFault(f"no MCP server answers at {server}: {_cause(error)}") from error
        yield [_tool(client, each) for each in found]


async def _list(client: Client) -> list[Any]:
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _tool(client: Client, described: Any) -> Tool:
    """One tool of the server; MCP lets calls overlap."""

    async def call(**arguments: Any) -> str:
        from mcp import MCPError  # noqa: PLC0415 - an extra
        from mcp.types import CONNECTION_CLOSED  # noqa: PLC0415 - an extra

        try:
            result = await client.call_tool(described.name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise EnvFault(f"the MCP server is gone: {error.message}") from error
            raise ToolError(error.message) from error
        text = _text(result)
        if result.is_error:
            raise ToolError(text)
        return text

    return Tool.from_schema(
        described.name, described.input_schema, call, description=described.description or "", concurrent=True
    )


def _text(result: Any) -> str:
    """The parts of a result that are text, and the name of each that is not."""
    parts = [
        part.text
        if part.type == "text"
        else f"[{part.type}: {getattr(part, 'mime_type', None) or 'not shown'}]"
        for part in result.content
    ]
    if not parts and result.structured_content is not None:
        return render(result.structured_content)
    return "\n".join(parts)


def _cause(error: BaseException) -> str:
    """The words of what went wrong, which may lie inside of groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


@asynccontextmanager
async def _inside(sandbox: Sandbox, argv: list[str], env: dict[str, str]) -> AsyncIterator[Any]:
    """A transport to a command that runs in `sandbox`: the two streams that the SDK wants."""
    import anyio  # noqa: PLC0415 - comes with mcp
    from mcp.shared.message import SessionMessage  # noqa: PLC0415 - an extra

    python = await sandbox.interpreter("python")
    code = f"{_HELPER.format(log=_LOG, out=_OUT)}\n_server = _Server({argv!r}, {env!r})"
    started = await python.run(code, timeout_s=_START_WITHIN_S)
    if not started.ok:
        raise EnvFault(started.text)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](1024)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](1024)
    async with anyio.create_task_group() as tasks, to_client, from_server, to_server, from_client:
        tasks.start_soon(_pump, sandbox, python, from_client, to_client)
        try:
            yield from_server, to_server
        finally:
            tasks.cancel_scope.cancel()
    await python.run("_server.process.kill(); _ = _server.process.wait(); del _server")


async def _pump(sandbox: Sandbox, python: Interpreter, sent: Any, heard: Any) -> None:
    """Pass messages on in both directions, one cell at a time, until the server ends."""
    import anyio  # noqa: PLC0415 - comes with mcp
    from mcp.shared.message import SessionMessage  # noqa: PLC0415 - an extra
    from mcp.types import JSONRPCRequest, jsonrpc_message_adapter  # noqa: PLC0415 - an extra

    asked: set[str | int] = set()
    # The client closes its ends of the streams when it is done.
    with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            messages: list[SessionMessage] = [] if asked else [await sent.receive()]
            with contextlib.suppress(anyio.WouldBlock):
                while True:
                    messages.append(sent.receive_nowait())
            asked |= {each.message.id for each in messages if isinstance(each.message, JSONRPCRequest)}
            lines = [each.message.model_dump_json(by_alias=True, exclude_unset=True) for each in messages]
            cell = await python.run(f"_server.exchange({json.dumps(lines)}, {_WAIT_S if asked else 0.0})")
            if not cell.ok:
                break
            for line in (await sandbox.read(_OUT)).splitlines():
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                asked.discard(getattr(message, "id", None))
                await heard.send(SessionMessage(message))
    await heard.aclose()  # tells the client that the server has ended: its calls end with CONNECTION_CLOSED


async def install(sandbox: Sandbox, distribution: str) -> dict[str, str]:
    """Copy an installed distribution, with everything that it requires, into a sandbox, which has no network.

    Args:
        sandbox: of the Python that runs now, with room for the files (`Limits.disk_mib`) twice.
        distribution: its name, as pip knows it.

    Returns:
        The variables with which programs in the sandbox find it.

    Raises:
        MissingDependency: it, or something that it requires, is not installed here.
        EnvFault: the files do not fit.
    """
    await sandbox.write("/tmp/.packages.tar", _bundle(distribution))
    code = f"import os, tarfile; tarfile.open('/tmp/.packages.tar').extractall({PACKAGES!r}); os.unlink('/tmp/.packages.tar')"
    done = await sandbox.exec(["python3", "-c", code])
    if done.exit_code:
        raise EnvFault(f"{distribution} does not fit into the sandbox: {done.text[-500:]}")
    return {"PYTHONPATH": PACKAGES}


def _bundle(distribution: str) -> bytes:
    """A tar of the files of a distribution and of all that it requires."""
    data = io.BytesIO()
    waiting, seen = [distribution], set[str]()
    with tarfile.open(fileobj=data, mode="w") as tar:
        while waiting:
            name = waiting.pop()
            if _canonical(name) in seen:
                continue
            seen.add(_canonical(name))
            try:
                found = metadata.distribution(name)
            except metadata.PackageNotFoundError as error:
                raise MissingDependency(f"the package {name} is not installed: pip install {name}") from error
            for file in found.files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    tar.add(str(found.locate_file(file)), str(file))
            waiting += _required(found)
    return data.getvalue()


def _required(found: metadata.Distribution) -> list[str]:
    """Names of what a distribution requires here, without its extras."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - comes with mcp's own needs

    needed = [Requirement(line) for line in found.requires or ()]
    return [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


__all__ = ["PACKAGES", "connect", "install"]
