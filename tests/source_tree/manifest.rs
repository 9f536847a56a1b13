//! The packages, as `cargo metadata` has them, and what they depend on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::fault::{Fault, assert_none};
use super::source::{files, root};

/// Those of every workspace in the tree.
static PACKAGES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut packages: Vec<Value> = Vec::new();
    for manifest in files(|path| path == "Cargo.toml" || path.ends_with("/Cargo.toml")) {
        let manifest = root().join(manifest);
        let is_known = |package: &Value| Path::new(text(&package["manifest_path"])) == manifest;
        if !packages.iter().any(is_known) {
            packages.append(metadata(&manifest)["packages"].as_array_mut().unwrap());
        }
    }
    packages
});

fn metadata(manifest: &Path) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .arg("--manifest-path")
        .arg(manifest)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn package(name: &str) -> &'static Value {
    let named = PACKAGES.iter().find(|package| package["name"] == name);
    named.unwrap_or_else(|| panic!("no package {name}"))
}

/// The root files of all targets: libraries, programs, examples, tests and benches.
pub fn roots() -> Vec<PathBuf> {
    let targets = PACKAGES
        .iter()
        .flat_map(|package| package["targets"].as_array().unwrap());
    let roots = targets.map(|target| PathBuf::from(text(&target["src_path"])));
    roots.collect()
}

/// What a package's library may be built of.
struct Allowed {
    package: &'static str,
    /// All of them, without their default features.
    always: &'static [&'static str],
    /// Behind a feature of the same name.
    optional: &'static [&'static str],
    /// Of the same workspace.
    members: &'static [&'static str],
}

const LIBRARY: Allowed = Allowed {
    package: "amla",
    always: &["bytemuck", "half", "libm", "wide"],
    optional: &["rayon"],
    members: &[],
};

/// That it sees the public interface only is the compiler's to check: it is a crate of its own.
const C_INTERFACE: Allowed = Allowed {
    package: "amla-ffi",
    always: &["half"],
    optional: &[],
    members: &["amla"],
};

/// Crates that the library names.
pub const DEPENDENCIES: &[&str] = LIBRARY.always;

#[test]
fn dependencies() {
    assert_none(&dependencies_of(package(LIBRARY.package), &LIBRARY));
}

#[test]
fn dependencies_of_the_c_interface() {
    assert_none(&dependencies_of(package(C_INTERFACE.package), &C_INTERFACE));
}

fn dependencies_of(package: &Value, allowed: &Allowed) -> Vec<Fault> {
    let path = text(&package["manifest_path"]);
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(Fault::new(path, 1, what));
    let mut found = Vec::new();
    for dependency in package["dependencies"].as_array().unwrap() {
        let name = text(&dependency["name"]);
        match dependency["kind"].as_str() {
            Some("dev") => continue,
            Some(kind) => fault(format!("has {kind}-dependencies")),
            None => {}
        }
        if !dependency["target"].is_null() {
            fault(format!("depends on {name} for some targets only"));
        }
        let optional = dependency["optional"] == true;
        let lists = if optional {
            vec![allowed.optional]
        } else {
            vec![allowed.always, allowed.members]
        };
        if !lists.iter().any(|list| list.contains(&name)) {
            fault(format!("depends on {name}"));
        }
        if !optional && dependency["uses_default_features"] == true {
            fault(format!("takes {name} with its default features"));
        }
        found.push(name);
    }
    let needed = allowed.always.iter().chain(allowed.members);
    for name in needed.filter(|name| !found.contains(name)) {
        fault(format!(
            "doesn't depend on {name}; is the rule out of date?"
        ));
    }
    faults
}

#[test]
fn finds_dependencies() {
    let dependency = |name: &str| {
        json!({
            "name": name, "kind": null, "optional": false, "target": null,
            "uses_default_features": false,
        })
    };
    let with = |key: &str, value: Value| {
        let mut serde = dependency("serde");
        serde[key] = value;
        serde
    };
    let mut defaults = dependency("half");
    defaults["uses_default_features"] = json!(true);
    let check = |more: &[Value], less: &str| {
        let names = ["bytemuck", "half", "libm", "wide"];
        let names = names.into_iter().filter(|name| *name != less);
        let mut dependencies: Vec<Value> = names.map(dependency).collect();
        dependencies.extend_from_slice(more);
        let package = json!({"manifest_path": "Cargo.toml", "dependencies": dependencies});
        let faults = dependencies_of(&package, &LIBRARY);
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let mut rayon = dependency("rayon");
    assert_eq!(
        check(&[rayon.clone()], ""),
        ["Cargo.toml:1: depends on rayon"]
    );
    rayon["optional"] = json!(true);
    assert!(check(&[rayon, with("kind", json!("dev"))], "").is_empty());
    for (more, less, says) in [
        (dependency("serde"), "", "depends on serde"),
        (with("optional", json!(true)), "", "depends on serde"),
        (defaults, "half", "takes half with its default features"),
        (dependency("libm"), "wide", "doesn't depend on wide"),
    ] {
        let faults = check(&[more], less);
        assert!(faults.len() == 1 && faults[0].contains(says), "{faults:?}");
    }
    for (key, value, says) in [
        ("kind", "build", "has build-dependencies"),
        ("target", "x", "depends on serde for some targets only"),
    ] {
        let faults = check(&[with(key, json!(value))], "");
        assert!(faults[0].contains(says), "{faults:?}");
    }
}
