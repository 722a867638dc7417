#!/bin/sh
# Runs the installed rustdoc as docs.rs runs it: with the unstable features of a nightly compiler. The documentation then
# names the feature of each item that needs one. Cargo runs this script if it is the value of RUSTDOC. The variable is set
# for rustdoc alone, because cargo would compile some dependencies again if the variable were set for cargo.
#
# Also writes the public API of each published library into a JSON file beside the documentation. The test `public_api`
# reads these files.
set -eu
export RUSTC_BOOTSTRAP=1
rustdoc "$@"
case " $* " in
*" --crate-name lock_core "* | *" --crate-name lock_macros "* | *" --crate-name lock_page "* | *" --crate-name lock_runtime "*)
    rustdoc "$@" -Z unstable-options --output-format json
    ;;
esac
