"""A real SFTP server for tests: paramiko's protocol over a directory, on the loopback interface."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
from paramiko import SFTPAttributes, SFTPHandle, SFTPServer, SFTPServerInterface

USER, PASSWORD = "tester", "an-sftp-password"


class SftpServer:
    """Serves ``directory`` as its root. ``storage_options`` are what a store needs.

    ``drop`` breaks all connections; ``full`` makes each write fail as on a full disk.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.full = False
        self._key = paramiko.ECDSAKey.generate()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._transports: list[paramiko.Transport] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"username": USER, "password": PASSWORD, "port": self.port}

    @property
    def url(self) -> str:
        return "sftp://127.0.0.1"

    def drop(self) -> None:
        for transport in self._transports:
            transport.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(20)
        self.drop()
        for transport in self._transports:
            transport.join(20)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            self._transports.append(transport)
            transport.add_server_key(self._key)
            transport.set_subsystem_handler("sftp", SFTPServer, _Files, self)
            with suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(server=_Login())


class _Login(paramiko.ServerInterface):
    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL if (username, password) == (USER, PASSWORD) else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Handle(SFTPHandle):
    def __init__(self, server: SftpServer, flags: int, file: Any) -> None:
        super().__init__(flags)
        self._server = server
        self.readfile = self.writefile = self._file = file

    def write(self, offset: int, data: bytes) -> int:
        return paramiko.SFTP_FAILURE if self._server.full else int(super().write(offset, data))

    def stat(self) -> Any:
        return SFTPAttributes.from_stat(os.fstat(self._file.fileno()))


def _answering(function: Any) -> Any:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except OSError as error:
            return SFTPServer.convert_errno(error.errno or 0)

    return call


class _Files(SFTPServerInterface):
    def __init__(self, _login: Any, server: SftpServer, *_: Any) -> None:
        self._server = server

    def _path(self, path: str) -> Path:
        return self._server.directory / os.path.normpath("/" + path).lstrip("/")

    @_answering
    def list_folder(self, path: str) -> Any:
        found = []
        for entry in os.scandir(self._path(path)):
            attributes = SFTPAttributes.from_stat(entry.stat())
            attributes.filename = entry.name
            found.append(attributes)
        return found

    @_answering
    def stat(self, path: str) -> Any:
        return SFTPAttributes.from_stat(self._path(path).stat())

    lstat = stat

    @_answering
    def open(self, path: str, flags: int, attr: Any) -> Any:
        descriptor = os.open(self._path(path), flags, 0o600)
        mode = "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb"
        return _Handle(self._server, flags, os.fdopen(descriptor, mode))

    @_answering
    def remove(self, path: str) -> int:
        self._path(path).unlink()
        return paramiko.SFTP_OK

    @_answering
    def rename(self, old: str, new: str) -> int:
        if self._path(new).exists():
            return paramiko.SFTP_FAILURE  # as the protocol's plain rename
        self._path(old).rename(self._path(new))
        return paramiko.SFTP_OK

    @_answering
    def posix_rename(self, old: str, new: str) -> int:
        self._path(old).replace(self._path(new))
        return paramiko.SFTP_OK

    @_answering
    def mkdir(self, path: str, attr: Any) -> int:
        self._path(path).mkdir()
        return paramiko.SFTP_OK

    @_answering
    def rmdir(self, path: str) -> int:
        self._path(path).rmdir()
        return paramiko.SFTP_OK


@contextmanager
def sftp_server(directory: Path) -> Iterator[SftpServer]:
    """Run a server for the length of a block."""
    server = SftpServer(directory)
    try:
        yield server
    finally:
        server.close()
