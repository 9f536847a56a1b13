#!/usr/bin/env bash
# Builds the library and installs it with its header, pkg-config file and CMake package:
#
#   ffi/install.sh [--prefix DIR] [--libdir NAME] [--destdir DIR]
#
# to /usr/local and lib by default. A destdir goes before all paths, but into none of the files.
set -euo pipefail

prefix=/usr/local libdir=lib destdir=
while [ $# -gt 0 ]; do
  case "$1" in
    --prefix | --libdir | --destdir)
      [ $# -gt 1 ] || { echo "$1 needs a value" >&2; exit 2; }
      declare "${1#--}=$2"
      shift 2
      ;;
    *)
      sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
      exit 2
      ;;
  esac
done
case "$prefix" in
  /*) ;;
  *) echo "--prefix must be an absolute path" >&2; exit 2 ;;
esac

ffi=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ffi/Cargo.toml" | head -1)
target=${CARGO_TARGET_DIR:-$ffi/../target}
(cd "$ffi" && cargo build --release -p amla-ffi --target-dir "$target")

# From lib/cmake/amla, or lib/x86_64-linux-gnu/cmake/amla, back to the prefix.
to_prefix=../..$(printf '%s' "/$libdir" | sed 's,/[^/][^/]*,/..,g')
fill() {
  sed -e "s,@PREFIX@,$prefix,g" -e "s,@LIBDIR@,\${prefix}/$libdir,g" -e "s,@VERSION@,$version,g" \
    -e "s,@MAJOR_MINOR@,${version%.*},g" -e "s,@TO_PREFIX@,$to_prefix,g" "$1" >"$2"
  chmod 644 "$2"
}

lib=$destdir$prefix/$libdir
mkdir -p "$destdir$prefix/include" "$lib/pkgconfig" "$lib/cmake/amla"
install -m 644 "$ffi/include/amla.h" "$destdir$prefix/include/amla.h"
install -m 644 "$target/release/libamla.a" "$lib/libamla.a"
install -m 755 "$target/release/libamla.so" "$lib/libamla.so"
fill "$ffi/amla.pc.in" "$lib/pkgconfig/amla.pc"
for file in amla-config amla-config-version; do
  fill "$ffi/cmake/$file.cmake.in" "$lib/cmake/amla/$file.cmake"
done
