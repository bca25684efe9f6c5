//! A container image with the static program alone, as an archive in the OCI's layout: one layer, one manifest. It takes no
//! daemon to write three JSON files; `podman load`, `skopeo copy oci-archive:` and `ctr image import` read it.

use super::program::inside;
use super::{sha256, tar};
use crate::setup::{Need, done};
use crate::steps::Ended;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What `packaging/Containerfile` says, too.
const USER: &str = "65534:65534";

/// Writes `lockwright-oci.tar`.
///
/// # Errors
/// In a line.
pub(super) fn build(dist: &Path) -> Result<(), String> {
    let folder = dist.join("image");
    let built = layout(dist, &folder).and_then(|()| tar(&folder, &dist.join("lockwright-oci.tar"), &[]));
    let _ = fs::remove_dir_all(folder);
    built
}

/// Lets tools that are not ours copy, unpack and run the image. Skipped where they are not to be had.
pub(super) fn read(root: &Path, dist: &Path, may: bool) -> Ended {
    if let Err(why) = Need::ImageTools.get(root, may) {
        println!("skipped: {why}");
        return Ended::Skipped;
    }
    let folder = dist.join("unpacked");
    let tried = unpacked(dist, &folder);
    let _ = fs::remove_dir_all(folder);
    crate::bindings::verdict(tried)
}

fn unpacked(dist: &Path, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let archive = format!("oci-archive:{}", dist.join("lockwright-oci.tar").display());
    let (copy, bundle) = (folder.join("copy"), folder.join("bundle"));
    // Checks every sum and size on its way.
    done(
        Command::new("skopeo")
            .args(["copy", "--quiet", &archive])
            .arg(format!("oci:{}:tried", copy.display())),
    )?;
    let mut unpack = Command::new("umoci");
    unpack.args(["unpack", "--rootless", "--image"]).arg(format!("{}:tried", copy.display()));
    done(unpack.arg(&bundle))?;
    let config = fs::read(bundle.join("config.json")).map_err(|error| error.to_string())?;
    let config: Value = serde_json::from_slice(&config).map_err(|error| error.to_string())?;
    let process = &config["process"];
    let (uid, gid) = (&process["user"]["uid"], &process["user"]["gid"]);
    if process["args"][0] != "/lockwright" || format!("{uid}:{gid}") != USER {
        return Err(format!("the image would be started as {process}"));
    }
    let rootfs = bundle.join("rootfs");
    fs::create_dir_all(rootfs.join("proc")).map_err(|error| error.to_string())?;
    let said = inside(&rootfs, &["/lockwright", "--version"])?;
    if said.starts_with("lockwright ") { Ok(()) } else { Err(format!("it said {said:?}")) }
}

fn layout(dist: &Path, folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let (blobs, root) = (folder.join("blobs/sha256"), folder.join("root"));
    fs::create_dir_all(&blobs).map_err(failed)?;
    fs::create_dir_all(&root).map_err(failed)?;
    fs::copy(dist.join("lockwright"), root.join("lockwright")).map_err(failed)?;
    let layer = folder.join("layer.tar");
    tar(&root, &layer, &[])?;
    fs::remove_dir_all(root).map_err(failed)?;

    let (layer_sum, layer_size) = store(&blobs, &layer)?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Entrypoint": ["/lockwright"], "User": USER },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_sum}")] },
    });
    let (config_sum, config_size) = store_json(folder, &blobs, &config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config_sum, config_size),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer_sum, layer_size)],
    });
    let (manifest_sum, manifest_size) = store_json(folder, &blobs, &manifest)?;
    let mut listed = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest_sum, manifest_size);
    listed["annotations"] = json!({ "org.opencontainers.image.ref.name": "lockwright" });
    let index = json!({ "schemaVersion": 2, "manifests": [listed] });
    fs::write(folder.join("index.json"), index.to_string()).map_err(failed)?;
    fs::write(folder.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string()).map_err(failed)
}

fn descriptor(kind: &str, sum: &str, size: u64) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{sum}"), "size": size })
}

/// Moves a file to where its checksum says.
fn store(blobs: &Path, file: &Path) -> Result<(String, u64), String> {
    let sum = sha256(file)?;
    let size = fs::metadata(file).map_err(|error| error.to_string())?.len();
    fs::rename(file, blobs.join(&sum)).map_err(|error| error.to_string())?;
    Ok((sum, size))
}

fn store_json(folder: &Path, blobs: &Path, value: &Value) -> Result<(String, u64), String> {
    let file = folder.join("blob.json");
    fs::write(&file, value.to_string()).map_err(|error| error.to_string())?;
    store(blobs, &file)
}
