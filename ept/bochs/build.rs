//! Links the program with its own linker script, without start files and without the C library.

fn main() {
    println!("cargo::rerun-if-changed=link.ld");
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,--gc-sections",
        "-Wl,-z,norelro",
        "-Wl,-z,noexecstack",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-T,{folder}/link.ld");
}
