//! The container image: one layer with the static programs, in the layout of the OCI Image Format 1.0, as one archive
//! that `podman load`, `docker load`, `skopeo` and `ctr` read.
//!
//! The same programs make the same image, byte for byte: times are 0, names are sorted.

use crate::cargo;
use crate::package::architecture::DebianArchitecture;
use crate::package::{alone, tree};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The image's users: the process that reads from the network becomes `farbus`.
const USERS: &str = "root:x:0:0:root:/root:/sbin/nologin\nfarbus:x:65520:65520:farbus:/var/lib/farbus:/sbin/nologin\n";
const GROUPS: &str = "root:x:0:\nfarbus:x:65520:\n";

/// The static programs that the image has.
pub struct ImagePrograms {
    /// The program `farbus`.
    pub farbus: PathBuf,
    /// The conformance kit, which `farbus conform` starts.
    pub conform: PathBuf,
}

/// Something that the image's layout names by its checksum.
struct OciBlob {
    digest: String,
    bytes: u64,
}

impl OciBlob {
    fn of(file: &Path) -> Result<Self, String> {
        let metadata = std::fs::metadata(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let mut sum = Command::new("sha256sum");
        sum.arg(file);
        let message = String::from_utf8_lossy(&cargo::output(sum)?).into_owned();
        let digest = message.split_whitespace().next().unwrap_or_default().trim_start_matches('\\').to_owned();
        Ok(Self { digest, bytes: metadata.len() })
    }

    fn described(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": format!("sha256:{}", self.digest), "size": self.bytes})
    }
}

/// Makes `farbus-VERSION-ARCHITECTURE.oci.tar` in `out` of static programs. `work` is a folder for what is in between.
///
/// # Errors
/// A file cannot be written, or a program failed.
pub fn make(out: &Path, work: &Path, version: &str, programs: &ImagePrograms) -> Result<PathBuf, String> {
    let root = work.join("layer");
    tree::put(&programs.farbus, &root.join("usr/bin/farbus"), 0o755)?;
    tree::put(&programs.conform, &root.join("usr/bin/farbus-conform"), 0o755)?;
    tree::put_text(USERS.as_bytes(), &root.join("etc/passwd"), 0o644)?;
    tree::put_text(GROUPS.as_bytes(), &root.join("etc/group"), 0o644)?;
    for (folder, mode) in [("var/lib/farbus", 0o700), ("run", 0o755), ("tmp", 0o1777)] {
        tree::folder_of_mode(&root.join(folder), mode)?;
    }
    let layout = work.join("oci");
    let blobs = layout.join("blobs/sha256");
    tree::folder_of_mode(&blobs, 0o755)?;
    let layer_file = work.join("layer.tar");
    pack(&root, &layer_file)?;
    let layer = keep(&blobs, &layer_file)?;
    let architecture = DebianArchitecture::of_this_machine()?.name();
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/farbus"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin", "FARBUS_STATE=/var/lib/farbus"],
            "Volumes": {"/var/lib/farbus": {}},
            "ExposedPorts": {"3241/tcp": {}, "3241/udp": {}},
            "Labels": {
                "org.opencontainers.image.title": "farbus",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
    });
    let config = keep_json(work, &blobs, &config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.described(CONFIG),
        "layers": [layer.described(LAYER)],
    });
    let manifest = keep_json(work, &blobs, &manifest)?;
    let mut described = manifest.described(MANIFEST);
    described["annotations"] = json!({"org.opencontainers.image.ref.name": version});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [described]});
    tree::put_text(index.to_string().as_bytes(), &layout.join("index.json"), 0o644)?;
    tree::put_text(br#"{"imageLayoutVersion":"1.0.0"}"#, &layout.join("oci-layout"), 0o644)?;
    let image = out.join(format!("farbus-{version}-{architecture}.oci.tar"));
    pack(&layout, &image)?;
    Ok(image)
}

/// Reads an image as a container runtime does, and uses its program in its layer, where nothing else is. Only root may.
/// `work` is a folder for what is unpacked.
///
/// # Errors
/// The image is damaged, or its program does not work there.
pub fn check(image: &Path, work: &Path) -> Result<(), String> {
    let layout = work.join("layout");
    unpack(image, &layout)?;
    let LayerContents { layer, config } = read(&layout)?;
    let root = work.join("root");
    unpack(&layer, &root)?;
    let words = |name: &str| -> Vec<String> {
        let list = config["config"][name].as_array().into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let [program] = &words("Entrypoint")[..] else { return Err("the image has no single entry point".to_owned()) };
    alone::check(&root, program, &words("Env"))
}

/// What a layout holds.
struct LayerContents {
    layer: PathBuf,
    config: Value,
}

/// Reads a layout of one image of one layer; each part has the length and the checksum that it is named by.
fn read(layout: &Path) -> Result<LayerContents, String> {
    let index = json(&layout.join("index.json"))?;
    let manifest = json(&part(layout, &index["manifests"][0], MANIFEST)?)?;
    let config = json(&part(layout, &manifest["config"], CONFIG)?)?;
    let layer = part(layout, &manifest["layers"][0], LAYER)?;
    if config["rootfs"]["diff_ids"][0] == manifest["layers"][0]["digest"] {
        Ok(LayerContents { layer, config })
    } else {
        Err("the configuration of the image names another layer".to_owned())
    }
}

fn json(file: &Path) -> Result<Value, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", file.display()))
}

fn part(layout: &Path, described: &Value, media_type: &str) -> Result<PathBuf, String> {
    let name = described["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:")).unwrap_or_default();
    let file = layout.join("blobs/sha256").join(name);
    let found = OciBlob::of(&file)?.described(media_type);
    let is_same = ["mediaType", "digest", "size"].iter().all(|key| found[key] == described[key]);
    if is_same { Ok(file) } else { Err(format!("the image names {described}, and has {found}")) }
}

fn unpack(archive: &Path, to: &Path) -> Result<(), String> {
    tree::folder_of_mode(to, 0o755)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--preserve-permissions", "--numeric-owner", "--file"]).arg(archive);
    tar.arg("--directory").arg(to);
    tree::succeed(tar)
}

fn pack(folder: &Path, archive: &Path) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
    tar.arg("--file").arg(archive).arg("--create").arg("--directory").arg(folder);
    tar.args(tree::names(folder)?);
    tree::succeed(tar)
}

fn keep_json(work: &Path, blobs: &Path, value: &Value) -> Result<OciBlob, String> {
    let file = work.join("blob.json");
    tree::put_text(value.to_string().as_bytes(), &file, 0o644)?;
    keep(blobs, &file)
}

/// Moves a file to where the layout has it.
fn keep(blobs: &Path, file: &Path) -> Result<OciBlob, String> {
    let blob = OciBlob::of(file)?;
    std::fs::rename(file, blobs.join(&blob.digest))
        .map_err(|error| format!("cannot keep {}: {error}", file.display()))?;
    Ok(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_is_the_same_each_time_and_is_refused_if_a_byte_is_wrong() {
        let folder = std::env::temp_dir().join(format!("xtask-image-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let programs = ImagePrograms { farbus: folder.join("program"), conform: folder.join("kit") };
        tree::put_text(b"#!/bin/true\n", &programs.farbus, 0o755).unwrap();
        tree::put_text(b"#!/bin/false\n", &programs.conform, 0o755).unwrap();
        let made = |name: &str| {
            let (out, work) = (folder.join(name), folder.join(name).join("work"));
            tree::folder_of_mode(&out, 0o755).unwrap();
            let image = make(&out, &work, "1.2.3", &programs).unwrap();
            (std::fs::read(image).unwrap(), work)
        };
        let ((first, work), (second, _)) = (made("a"), made("b"));
        assert!(first == second && first.len() > 4096);
        let layout = work.join("oci");
        let layer = read(&layout).unwrap().layer;
        let mut list = Command::new("tar");
        list.arg("--list").arg("--verbose").arg("--file").arg(&layer);
        let listed = String::from_utf8(cargo::output(list).unwrap()).unwrap();
        let mut damaged = std::fs::read(&layer).unwrap();
        damaged[0] ^= 1;
        std::fs::write(&layer, damaged).unwrap();
        let refused = read(&layout).map(|_| ()).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refused.contains("the image names"), "{refused}");
        let is_there = |line: &str, end: &str| line.ends_with(end) && line.contains(" 0/0 ");
        for (mode, end) in [
            ("-rwxr-xr-x", "usr/bin/farbus"),
            ("-rwxr-xr-x", "usr/bin/farbus-conform"),
            ("drwx------", "var/lib/farbus/"),
            ("drwxrwxrwt", "tmp/"),
        ] {
            assert!(listed.lines().any(|line| line.starts_with(mode) && is_there(line, end)), "{end}: {listed}");
        }
    }
}
