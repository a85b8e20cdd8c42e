"""Hashes by name, against known digests."""

from __future__ import annotations

import hashlib
import io

import pytest
import xxhash

from streamshard.format.hashing import check_hash_name, hash_bytes, hash_file, known_hashes


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("xxh64", "44bc2cf5ad770999"),
        ("xxh32", "32d153ff"),
        ("xxh3_64", "78af5f94892f3950"),
        ("md5", "900150983cd24fb0d6963f7d28e17f72"),
        ("sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ],
)
def test_abc_has_the_published_digest(name, digest):
    assert hash_bytes(name, b"abc") == digest


@pytest.mark.parametrize("name", known_hashes())
def test_a_file_in_pieces_has_the_digest_of_its_bytes(name):
    content = bytes(range(256)) * 9000
    wanted = (getattr(xxhash, name) if name.startswith("xxh") else getattr(hashlib, name))(
        content
    ).hexdigest()
    assert (
        hash_bytes(name, content)
        == hash_bytes(name, memoryview(content))
        == hash_file(name, io.BytesIO(content))
        == wanted
    )


@pytest.mark.parametrize("name", ["", "SHA1", "shake_128", "crc32", "xxh3"])
def test_an_unknown_hash_is_refused_with_the_known_ones(name):
    with pytest.raises(ValueError, match=r"expected one of blake2b, .*xxh64"):
        check_hash_name(name)
    with pytest.raises(ValueError, match="expected one of"):
        hash_bytes(name, b"")
