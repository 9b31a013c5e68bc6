"""Images for container sandboxes, made on this machine for machines without a registry.

`busybox` is made of what is here already, in seconds: busybox-static for the commands, bash, and the Python that runs
now with its standard library and the C libraries that those load. `debian` is a minimal Debian with Python, made by
debootstrap in minutes (as root, from a Debian mirror).

An image is a tar of a root file system, which every engine imports under a name of one's choice.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from turngym.errors import ConfigError, MissingDependency

DEFAULT_IMAGE: Final = "turngym-sandbox:latest"
_PREFIX = "usr/local"
_FOLDERS = ("etc", "usr/bin", "usr/lib", f"{_PREFIX}/bin", f"{_PREFIX}/lib", "home/agent", "workspace", "tmp", "proc", "sys", "dev")  # fmt: skip
_MERGED = {"bin": "usr/bin", "sbin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib"}
_LEFT_OUT = re.compile(
    r"(^|/)(test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|dist-packages|config-[^/]*)(/|$)"
    r"|\.a$|\.opt-[12]\.pyc$|/_tkinter\."
)
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n",
    "etc/group": "root:x:0:\nagent:x:1000:\n",
}
_DEBIAN_PACKAGES = "python3,bash"
_SUITE = "stable"


def build(kind: str, target: Path) -> None:
    """Write the root file system of an image of one of `KINDS` to `target`, as a tar.

    Raises:
        MissingDependency: a program that this needs is not installed; says how to get it.
        ConfigError: debootstrap failed.
    """
    KINDS[kind](target)


def ensure_default() -> None:
    """See to it that the engine that runs has the default image: build it unless it is there.

    Raises:
        MissingDependency: no engine answers, or a program that this needs is not installed; says how to get it.
    """
    from turngym.sandbox import engine  # noqa: PLC0415 - it takes the name of the default image from here

    engine.client()
    try:
        engine.image_config(DEFAULT_IMAGE)
    except MissingDependency:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "image.tar")
            build("busybox", made)
            engine.import_image(made, DEFAULT_IMAGE)


# ---------------------------------------------------------------------- busybox


def _busybox(target: Path) -> None:
    busybox, bash = _program("busybox", "busybox-static"), _program("bash", "bash")
    if _libraries(busybox):
        raise MissingDependency(
            f"{busybox} is linked dynamically: `apt-get install busybox-static` (or its like)"
        )
    stdlib = Path(sysconfig.get_path("stdlib"))
    base = Path(sys.base_prefix)
    python = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for folder in _FOLDERS:
            _add_folder(tar, folder)
        for link, to in _MERGED.items():
            _add_link(tar, link, to)
        for name, text in _ACCOUNTS.items():
            _add_bytes(tar, name, text.encode())
        tar.add(busybox, "usr/bin/busybox", filter=_as_root)
        applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
        for applet in set(applets.stdout.split()) - {"busybox", "bash"}:
            _add_link(tar, f"usr/bin/{applet}", "busybox")
        tar.add(bash, "usr/bin/bash", filter=_as_root)
        tar.add(python, f"{_PREFIX}/bin/{python.name}", filter=_as_root)
        for link in {"python3", "python"} - {python.name}:
            _add_link(tar, f"{_PREFIX}/bin/{link}", python.name)
        tar.add(stdlib, f"{_PREFIX}/{stdlib.relative_to(base)}", filter=_standard_library)
        extensions = [path for path in (stdlib / "lib-dynload").glob("*.so") if "_tkinter" not in path.name]
        for library in _libraries(bash, python, *extensions):
            tar.add(os.path.realpath(library), f"usr/lib/{library.name}", filter=_as_root)


def _program(name: str, package: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise MissingDependency(f"the program {name} is not installed: `apt-get install {package}`")
    return Path(os.path.realpath(found))


def _libraries(*programs: Path) -> list[Path]:
    """The shared libraries that `programs` load, the loader itself among them; [] for a static program.

    The loader searches `/usr/lib` by default, so that is where they go; the loader's own path is written into each
    program, and leads there through the links from `/lib` and `/lib64`.
    """
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    found = {Path(word) for word in re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout)}
    return sorted({path.name: path for path in sorted(found)}.values())


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member  # with its time: compiled Python is held against that of its source


def _standard_library(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    inside = member.name.removeprefix(f"{_PREFIX}/")
    return None if _LEFT_OUT.search(inside) else _as_root(member)


def _add_folder(tar: tarfile.TarFile, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    tar.addfile(member)


def _add_link(tar: tarfile.TarFile, name: str, to: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, to
    tar.addfile(member)


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))


# ---------------------------------------------------------------------- debian


def _debian(target: Path) -> None:
    debootstrap = _program("debootstrap", "debootstrap")
    if os.geteuid() != 0:
        raise ConfigError("debootstrap has to be root: run this command as root, or build the busybox image")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        words = [str(debootstrap), "--variant=minbase", f"--include={_DEBIAN_PACKAGES}", _SUITE, str(root)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"debootstrap failed: {(done.stdout + done.stderr).strip()[-800:]}")
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(root.iterdir()):
                tar.add(path, path.name, filter=_without_caches)


def _without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if re.match(r"var/(cache/apt|lib/apt/lists)/.", member.name) else member


KINDS: Final[dict[str, Callable[[Path], None]]] = {"busybox": _busybox, "debian": _debian}
"""Kinds of images, by name."""
