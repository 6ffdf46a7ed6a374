#!/usr/bin/env python3
"""Makes an OCI archive of one program without a container engine, for `ctr image import`, `skopeo copy oci-archive:` and the like.

    helm/images/oci-archive.py PROGRAM --name weir-agent:0.1.0 [--user 0:0] --out weir-agent.tar

The image holds the program as its entry point, the shared libraries that the loader names for it, and what the C library needs
to look up names and users, and the certificates of public authorities. The same inputs make the same bytes. Nothing is run but ldd, which runs the program's loader: give it
your own programs alone.
"""

import argparse
import gzip
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

ETC = {
    # Without it glibc would not ask DNS for hosts.
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/passwd": "root:x:0:0:root:/:/nonexistent\nnonroot:x:65532:65532:nonroot:/:/nonexistent\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
}
# Of this machine, where it has them: for collectors of traces with https.
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
DIRECTORIES = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var", "var/lib", "var/run")


def libraries(program):
    """The paths under which the loader looks for the program's libraries, itself included."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    paths = set()
    for line in said.splitlines():
        if "not found" in line:
            sys.exit(f"{program}: {line.strip()}")
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            paths.add(found[1])
    return sorted(paths)


def layer(program):
    """The root file system as a tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made = set()

        def directory(path):
            parts = Path(path).parts
            for depth in range(1, len(parts) + 1):
                name = "/".join(parts[:depth])
                if name not in made:
                    made.add(name)
                    info = tarfile.TarInfo(name)
                    info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                    tar.addfile(info)

        def file(path, data, mode):
            directory(str(Path(path).parent))
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))

        for name in DIRECTORIES:
            directory(name)
        for path, text in sorted(ETC.items()):
            file(path, text.encode(), 0o644)
        if AUTHORITIES.is_file():
            file(str(AUTHORITIES).lstrip("/"), AUTHORITIES.read_bytes(), 0o644)
        for path in libraries(program):
            # As the loader names it: a link's target lies under that name.
            file(path.lstrip("/"), Path(path).read_bytes(), 0o755)
        file(f"bin/{program.name}", program.read_bytes(), 0o755)
    return out.getvalue()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def descriptor(media, data, **more):
    return {"mediaType": f"application/vnd.oci.image.{media}", "digest": digest(data), "size": len(data), **more}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", type=Path)
    parser.add_argument("--name", required=True, help="name and tag, for instance weir-agent:0.1.0")
    parser.add_argument("--arg", action="append", default=[], help="an argument of the entry point; may be repeated")
    parser.add_argument("--user", default="65532:65532", help="uid:gid of the process")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    if not re.fullmatch(r"[a-z0-9./_-]+(:[0-9]+/[a-z0-9./_-]+)?:[A-Za-z0-9._-]+", options.name):
        parser.error(f"{options.name} is no NAME:TAG")
    if not options.program.is_file():
        parser.error(f"{options.program} is not there: build it first")

    tar = layer(options.program)
    packed = gzip.compress(tar, mtime=0)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": [f"/bin/{options.program.name}", *options.arg], "User": options.user, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
    }
    config = json.dumps(config, sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("config.v1+json", config),
        "layers": [descriptor("layer.v1.tar+gzip", packed)],
    }
    manifest = json.dumps(manifest, sort_keys=True).encode()
    # Importers name the image by the first; the specification knows the second.
    names = {
        "io.containerd.image.name": options.name,
        "org.opencontainers.image.ref.name": options.name.rsplit(":", 1)[1],
    }
    index = {"schemaVersion": 2, "manifests": [descriptor("manifest.v1+json", manifest, annotations=names)]}
    with tarfile.open(options.out, "w", format=tarfile.PAX_FORMAT) as out:
        blobs = {f"blobs/sha256/{digest(blob)[7:]}": blob for blob in (config, manifest, packed)}
        for path, data in {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps(index, sort_keys=True).encode(),
            **blobs,
        }.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    print(f"{options.out} {options.name} packed={len(packed)} unpacked={len(tar)}")


if __name__ == "__main__":
    main()
