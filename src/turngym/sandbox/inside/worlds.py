"""The files of a sandbox and of its forks: tmpfs layers under overlay mounts.

The one idea: a fork never copies a file. Freezing a world makes its own layer read-only for everybody who still
holds it open; whoever goes on from there gets an empty layer on top. The kernel refuses to freeze a layer that
someone can still write to, so even a hostile process can't reach into what its siblings see.

Overlayfs gets slower with each layer it has to look through, so a deep stack is copied into one now and then.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from . import linux

TYPE_CHECKING = False  # as in `typing`, which is not loaded for it
if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS = "/.layers"
PLACES = ("workspace", "tmp", "home/agent", "dev/shm")
MAX_LAYERS = 32
_SAFE = linux.MS_NOSUID | linux.MS_NODEV
_CHUNK = 1 << 20


class Busy(OSError):
    """A world that can't be frozen, because a process can still write to it."""


class Layer:
    """One tmpfs with the changes of one world; it is unmounted with its last user."""

    def __init__(self, name: str, options: str) -> None:
        self.name = name
        self.users = 0
        self._options = options
        os.mkdir(name, 0o700)
        linux.mount("tmpfs", name, "tmpfs", _SAFE, f"mode=700,{options}")
        os.mkdir(f"{name}/up", 0o755)
        os.mkdir(f"{name}/work", 0o755)

    def freeze(self, frozen: bool) -> None:
        """Make the whole file system read-only, or writable again."""
        flags = linux.MS_REMOUNT | _SAFE | (linux.MS_RDONLY if frozen else 0)
        linux.mount("tmpfs", self.name, None, flags, self._options)

    def retain(self) -> None:
        """Count one more user."""
        self.users += 1

    def release(self) -> None:
        """Count one user less."""
        self.users -= 1
        if self.users == 0:
            linux.umount(self.name)
            os.rmdir(self.name)


class World:
    """What one sandbox sees: its own layer over the frozen ones of its ancestors, nearest first."""

    def __init__(self, root: str, layer: Layer, below: tuple[Layer, ...]) -> None:
        self.root = root
        self.layer = layer
        self.below = below
        for each in (layer, *below):
            each.retain()

    def _freeze(self, frozen: bool) -> None:
        if not self.below:
            self.layer.freeze(frozen)
        else:
            flags = linux.MS_REMOUNT | _SAFE | (linux.MS_RDONLY if frozen else 0)
            linux.mount("overlay", self.root, None, flags)

    def freeze(self) -> None:
        """Make the world read-only.

        Raises:
            Busy: something in it is open for writing; nothing has changed.
        """
        try:
            self._freeze(True)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise Busy(error.errno, "a file is open for writing") from error
            raise

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._freeze(False)

    def full(self) -> bool:
        """True where the layer has no room for another page or another file."""
        room = os.statvfs(self.layer.name)
        return room.f_bfree == 0 or room.f_ffree == 0

    def drop(self) -> None:
        """Let go of the files."""
        if self.below:
            linux.umount(self.root)
            os.rmdir(self.root)
        for each in (self.layer, *self.below):
            each.release()

    def mounts(self) -> list[int]:
        """Detached mounts of `PLACES`, as file descriptors that another process can attach."""
        return [linux.open_tree(f"{self.root}/{place}") for place in PLACES]


class Frozen:
    """The files of a snapshot."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers = layers
        for each in layers:
            each.retain()

    def drop(self) -> None:
        """Let go of the files."""
        for each in self.layers:
            each.release()


class Worlds:
    """Makes worlds. The working directory of the process is `LAYERS`, so that mount options stay short."""

    def __init__(self, disk_mib: int, files: int) -> None:
        self._options = f"size={disk_mib}m,nr_inodes={files}"
        self._made = 0
        linux.mount("tmpfs", LAYERS, "tmpfs", _SAFE, "mode=700,size=1m")
        os.chdir(LAYERS)

    def _next(self, letter: str) -> str:
        self._made += 1
        return f"{letter}{self._made}"

    def base(self) -> World:
        """An empty world."""
        layer = Layer(self._next("l"), self._options)
        root = f"{LAYERS}/{layer.name}/up"
        for place in PLACES:
            os.makedirs(f"{root}/{place}", 0o755)
        for place in ("tmp", "dev/shm"):
            os.chmod(f"{root}/{place}", 0o1777)
        return World(root, layer, ())

    def freeze(self, world: World) -> Frozen:
        """Freeze `world`, which the caller drops afterwards.

        Raises:
            Busy: something in it is open for writing; nothing has changed.
        """
        world.freeze()
        changed = bool(os.listdir(f"{world.layer.name}/up"))
        layers = (world.layer, *world.below) if changed else world.below
        if changed and len(layers) % MAX_LAYERS == 0:
            try:
                layers = (self._flatten(world),)
            except OSError as error:
                # `cp` can't do folders in folders without end. Overlayfs goes on, more slowly.
                sys.stderr.write(f"turngym: {error}\n")
        return Frozen(layers)

    def above(self, frozen: Frozen) -> World:
        """A world that goes on from `frozen`."""
        layer = Layer(self._next("l"), self._options)
        root = f"{LAYERS}/{self._next('w')}"
        os.mkdir(root, 0o700)
        lower = ":".join(f"{each.name}/up" for each in frozen.layers)
        name = layer.name
        data = f"lowerdir={lower},upperdir={name}/up,workdir={name}/work,userxattr"
        linux.mount("overlay", root, "overlay", _SAFE, data)
        return World(root, layer, frozen.layers)

    def _flatten(self, world: World) -> Layer:
        layer = Layer(self._next("l"), "size=100%,nr_inodes=0")
        os.rmdir(f"{layer.name}/up")
        pid = os.posix_spawn("/usr/bin/cp", ["cp", "-a", world.root, f"{layer.name}/up"], {})
        if os.waitpid(pid, 0)[1] != 0:
            linux.umount(layer.name)
            os.rmdir(layer.name)
            raise OSError(errno.EIO, "the layers could not be copied into one")
        layer.freeze(True)
        return layer


def read_file(world: World, path: str, limit: int, *, follow: bool) -> bytes:
    """The bytes of the regular file at `path`; see `base.Sandbox.read`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    root = os.open(world.root, os.O_PATH | os.O_DIRECTORY)
    try:
        fd = linux.open_in_root(root, path, flags)
    finally:
        os.close(root)
    try:
        size = _regular(fd)
        if size > limit:
            raise OSError(errno.EFBIG, f"the file has {size} bytes; the limit is {limit}")
        return _read_all(fd, limit)
    finally:
        os.close(fd)


def _regular(fd: int) -> int:
    """The size of a regular file.

    Raises:
        OSError: it is something else.
    """
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        raise OSError(errno.EISDIR, "a directory")
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return info.st_size


def _read_all(fd: int, limit: int) -> bytes:
    data = bytearray()
    while len(data) < limit and (chunk := os.read(fd, _CHUNK)):
        data += chunk
    return bytes(data)


def write_file(world: World, path: str, data: bytes, mode: int) -> None:
    """Put `data` at `path`; see `base.Sandbox.write`."""
    root = os.open(world.root, os.O_PATH | os.O_DIRECTORY)
    try:
        _make_directories(world, root, path.rpartition("/")[0])
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
        fd = linux.open_in_root(root, path, flags, mode)
    finally:
        os.close(root)
    try:
        _check_writable(world, fd)
        _regular(fd)
        os.ftruncate(fd, 0)
        os.fchmod(fd, mode & 0o777)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)


def _check_writable(world: World, fd: int) -> None:
    """Refuse what lies beside `PLACES`: the agent would not see it."""
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not any(f"{path}/".startswith(f"{world.root}/{place}/") for place in PLACES):
        raise OSError(errno.EROFS, "the system is read-only; write below /" + ", /".join(PLACES))


def _make_directories(world: World, root: int, path: str) -> None:
    walked = ""
    for part in path.strip("/").split("/"):
        parent, walked = walked, f"{walked}/{part}"
        try:
            fd = linux.open_in_root(root, walked, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            fd = linux.open_in_root(root, parent or "/", os.O_PATH | os.O_DIRECTORY)
            try:
                _check_writable(world, fd)
                os.mkdir(part, 0o755, dir_fd=fd)
            finally:
                os.close(fd)
        else:
            os.close(fd)


def digest(world: World) -> str:
    """SHA-256 over the names, modes and contents of everything in `world`.

    However deep folders lie in folders, and at the cost of what is stored: holes of a file are passed by.
    """
    import hashlib  # noqa: PLC0415 - loads OpenSSL; most supervisors never need it

    total = hashlib.sha256()
    open_folders: list[
        tuple[int, list[str]]
    ] = []  # each with what is still to come in it, the last name first

    def enter(name: str, dir_fd: int | None = None) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=dir_fd)
        open_folders.append((fd, sorted(os.listdir(fd), reverse=True)))

    try:
        enter(world.root)
        while open_folders:
            folder, names = open_folders[-1]
            if not names:
                os.close(open_folders.pop()[0])
                total.update(b")")
                continue
            name = names.pop()
            try:
                mode = os.lstat(name, dir_fd=folder).st_mode
                label = os.fsencode(name)
                total.update(b"%d:%s%o;" % (len(label), label, mode))
                if stat.S_ISDIR(mode):
                    enter(name, folder)
                elif stat.S_ISLNK(mode):
                    target = os.fsencode(os.readlink(name, dir_fd=folder))
                    total.update(b"%d:%s" % (len(target), target))
                elif stat.S_ISREG(mode):
                    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                    try:
                        for words in _contents(fd):
                            total.update(words)
                    finally:
                        os.close(fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise  # else something that still runs has removed or replaced it meanwhile
        return total.hexdigest()
    finally:
        for folder, _ in open_folders:
            os.close(folder)


def _contents(fd: int) -> Iterator[bytes]:
    """Words that two files share if, and only if, they have the same bytes: their size, and each chunk that is not zero."""
    size = os.fstat(fd).st_size
    yield b"%d;" % size
    zeros = bytes(_CHUNK)
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA) // _CHUNK * _CHUNK
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            raise
        chunk = os.pread(fd, _CHUNK, at)
        if chunk != zeros[: len(chunk)]:
            yield b"%d:" % at
            yield chunk
        at += _CHUNK
