"""What the clouds' own names mean: URLs and environment variables that users of mosaicml-streaming have, for fsspec.

Whatever ``storage_options`` says comes first. What fsspec's file systems or the libraries below them read themselves
(``AWS_*``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_*``, ``HF_TOKEN``, ``OCIFS_IAM_TYPE``) is left to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_GOOGLES_S3 = "https://storage.googleapis.com"
# Schemes of mosaicml-streaming whose file systems have other names in fsspec.
_RENAMED = {"azure": "az", "azure-dl": "abfs"}
_AZURE = frozenset({"az", "abfs", "abfss", "adl"})


@dataclass(frozen=True)
class Provider:
    """How fsspec is asked for a place.

    Attributes:
        url: with a scheme that fsspec knows.
        options: for the file system.
        used: environment variables that had a say.
    """

    url: str
    options: dict[str, Any] = field(repr=False)
    used: tuple[str, ...]


def provider_of(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> Provider:
    """Put the environment's variables for the scheme of ``url`` into the options of its file system.

    ========================================== =================================================================
    ``S3_CANNED_ACL``                          ``s3://``: access of files that are written
    ``MOSAICML_STREAMING_AWS_REQUESTER_PAYS``  ``s3://``: buckets, separated by commas, whose readers pay
    ``GCS_KEY``, ``GCS_SECRET``                ``gs://``: an HMAC key; Google's S3 interface is used with it
    ``AZURE_ACCOUNT_NAME``,                    ``az://``, ``abfs://``, ``azure://``, ``azure-dl://``
    ``AZURE_ACCOUNT_ACCESS_KEY``
    ``COMPOSER_SFTP_KEY_FILE``                 ``sftp://``: file of the private key
    ``~/.oci/config``, ``OCI_CONFIG_FILE``     ``oci://``: where it is there, credentials are taken from it
    ========================================== =================================================================
    """
    scheme, colon, rest = url.partition("://")
    scheme = scheme.lower()
    if scheme in _RENAMED:
        scheme = _RENAMED[scheme]
        url = f"{scheme}{colon}{rest}"
    merged = dict(options)
    used: list[str] = []

    def take(name: str, option: str, value: Any = None) -> None:
        if environ.get(name) and option not in merged:
            merged[option] = environ[name] if value is None else value
            used.append(name)

    if scheme in ("s3", "s3a"):
        bucket = rest.partition("/")[0]
        payers = environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
        if bucket in (name.strip() for name in payers):
            take("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "requester_pays", True)
        acl = {"ACL": environ.get("S3_CANNED_ACL")}
        take("S3_CANNED_ACL", "s3_additional_kwargs", acl)
    elif scheme in ("gs", "gcs"):
        named = merged.keys() & {"token", "anon", "session_kwargs"}
        if environ.get("GCS_KEY") and environ.get("GCS_SECRET") and not named:
            take("GCS_KEY", "key")
            take("GCS_SECRET", "secret")
            merged.pop("project", None)
            merged.setdefault("endpoint_url", _GOOGLES_S3)
            url = f"s3://{rest}"
    elif scheme in _AZURE:
        if not merged.keys() & {"connection_string", "sas_token", "credential", "account_key", "anon"}:
            take("AZURE_ACCOUNT_ACCESS_KEY", "account_key")
        if "connection_string" not in merged:
            take("AZURE_ACCOUNT_NAME", "account_name")
    elif scheme in ("sftp", "ssh") and not merged.keys() & {"password", "pkey"}:
        take("COMPOSER_SFTP_KEY_FILE", "key_filename")
    elif scheme == "oci":
        # ocifs by itself looks at what a machine of that cloud is allowed to, and nowhere else.
        named = merged.keys() & {"config", "signer", "iam_type"}
        if not named and not environ.get("OCIFS_IAM_TYPE") and _oci_config(environ).is_file():
            merged["iam_type"] = "api_key"
            used.append("~/.oci/config")
    return Provider(url, merged, tuple(used))


def _oci_config(environ: Mapping[str, str]) -> Path:
    usual = Path(environ.get("HOME") or "/", ".oci", "config")
    return usual if usual.is_file() else Path(environ.get("OCI_CONFIG_FILE") or usual)
