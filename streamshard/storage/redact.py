"""Keeping credentials out of URLs and messages that people see."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

# Begins at no other letter of a word than its first: a long word would be looked through from each.
_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]*)://(?P<user>[^/@\s]*)@")
# Places whose URLs have the name of a bucket there: oci://bucket@namespace, abfs://container@account.
_BUCKET_BEFORE_AT = frozenset({"oci", "abfs", "abfss"})
_QUERY_VALUE = re.compile(r"([?&;][^?;=&#\s]*=)[^&#\s]+")
# Of the environment only what clouds' own libraries read, and nothing so short that it may be a word.
_PROVIDERS = ("AWS_", "AZURE_", "GCS_", "GOOGLE_", "HF_", "HUGGING_FACE_", "OCI_", "R2_", "S3_")
_LEAST_LENGTH = 8
_SECRET_NAME = re.compile(r"key|secret|token|pass|cred|sas|sig|auth|connection_string|header", re.IGNORECASE)


def public_url(url: str) -> str:
    """Show ``url`` without user name, password and the values of its query."""
    return _QUERY_VALUE.sub(r"\1***", _without_users(url))


def _without_users(text: str) -> str:
    return _USERINFO.sub(lambda found: found[0] if _is_bucket(found) else f"{found['scheme']}://", text)


def _is_bucket(found: re.Match[str]) -> bool:
    return found["scheme"].lower() in _BUCKET_BEFORE_AT and ":" not in found["user"]


class SignaturesInLogs(logging.Filter):
    """Takes signatures of URLs out of a foreign logger's records, all of which it lets pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                public_url(each) if isinstance(each, str) and "Signature=" in each else each
                for each in record.args
            )
        return True


class Redactor:
    """Replaces the secrets of one URL, its storage options and the environment in any text."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        found = {secret for secret in _secrets(storage_options, named=False) if len(secret) >= 3}
        found.update(
            value
            for name, value in os.environ.items()
            if name.startswith(_PROVIDERS) and _SECRET_NAME.search(name) and len(value) >= _LEAST_LENGTH
        )
        for match in _USERINFO.finditer(url):
            for part in () if _is_bucket(match) else match["user"].split(":"):
                found.update(secret for secret in (part, unquote(part)) if len(secret) >= 3)
        for match in _QUERY_VALUE.finditer(url):
            value = match.group().partition("=")[2]
            found.update(secret for secret in (value, unquote(value)) if len(secret) >= 3)
        self._secrets = sorted(found, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return _without_users(text)


def _secrets(value: Any, *, named: bool) -> Iterator[str]:
    """Yield every string below a name that sounds like a credential."""
    if isinstance(value, str):
        if named:
            yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secrets(inner, named=named or bool(_SECRET_NAME.search(str(name))))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _secrets(inner, named=named)
