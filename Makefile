# The targets for people and CI. `make` alone lists them.

# Everything that is downloaded or built for the guests. The Rust build has its own folder.
BUILD := build
STATIC_TARGET := x86_64-unknown-linux-gnu
WORKLOAD := $(BUILD)/workload/$(STATIC_TARGET)/release/hikkoshi-workload
INITRAMFS := $(BUILD)/initramfs.cpio
WEB_INITRAMFS := $(BUILD)/initramfs-web.cpio
DEVICES_INITRAMFS := $(BUILD)/initramfs-devices.cpio
WORKLOAD_SOURCES := $(wildcard guest/workload/src/*.rs guest/workload/src/*/*.rs guest/checked-pages/src/*.rs) \
    guest/workload/Cargo.toml Cargo.toml Cargo.lock
NANO := $(BUILD)/nano/$(STATIC_TARGET)/release/nano
NANO_SOURCES := $(wildcard guest/nano/src/*.rs guest/nano/src/*/*.rs guest/nano/.cargo/* guest/nano/build.rs guest/nano/link.ld guest/nano/Cargo.*) \
    $(wildcard guest/checked-pages/src/*.rs guest/bare-metal/src/*.rs)
FUZZ_SECONDS ?= 60
# How many targets run at once.
FUZZ_JOBS ?= 1

# The second-stage tables are a workspace of their own. Builds share what does not differ.
EPT := CARGO_TARGET_DIR=../target

# With libvirt, for the program and its tests: headers and library of build/libvirt.
LIBVIRT_LIB := $(abspath $(BUILD))/libvirt/root/usr/lib/x86_64-linux-gnu
WITH_LIBVIRT = PKG_CONFIG_PATH=$(LIBVIRT_LIB)/pkgconfig LD_LIBRARY_PATH=$(LIBVIRT_LIB)

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## download QEMU 7.2, 10.0 and 11.1, a Debian kernel and busybox into build/
	@setup/setup.sh

.PHONY: guest
guest: setup ## build the test guest's initramfs, and the nano guest
	@$(MAKE) --no-print-directory $(INITRAMFS) $(NANO)

.PHONY: guest-debian
guest-debian: guest ## make a whole Debian guest
	@setup/setup.sh debian

.PHONY: guest-images
guest-images: guest ## make everything that `make test` boots
	@setup/setup.sh ovmf libvirt-12.9 pacemaker

# Only the matrix and the laboratory's own tests of devices need these.
.PHONY: guest-devices
guest-devices: guest ## fetch UEFI firmware, a kernel with the drivers of all devices, and passt
	@setup/setup.sh ovmf devices-kernel passt
	@$(MAKE) --no-print-directory $(DEVICES_INITRAMFS)

# Only tests of the dashboard and of the metrics need these.
.PHONY: browser
browser: ## fetch headless Chromium, and Prometheus
	@setup/setup.sh chromium prometheus

# Only tests of `migrate --ssh` need it.
.PHONY: bindfs
bindfs: ## fetch bindfs, a FUSE file system
	@setup/setup.sh bindfs

.PHONY: pacemaker
pacemaker: ## fetch Corosync and Pacemaker
	@setup/setup.sh pacemaker

.PHONY: openssh
openssh: ## fetch OpenSSH, server and client
	@setup/setup.sh openssh

# Linked statically with the host's C library, because the guest has none.
$(WORKLOAD): $(WORKLOAD_SOURCES)
	CARGO_TARGET_DIR=$(BUILD)/workload RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" \
	    cargo build --locked --release --package hikkoshi-workload --target $(STATIC_TARGET)
	@touch $@

# The same target as the workload's, but without the C library (guest/nano/.cargo/config.toml).
$(NANO): $(NANO_SOURCES)
	cd guest/nano && CARGO_TARGET_DIR=$(abspath $(BUILD))/nano cargo build --locked --release
	@touch $@

$(INITRAMFS): $(WORKLOAD) $(wildcard guest/initramfs/*) $(BUILD)/kernel/.done $(BUILD)/busybox/.done
	guest/initramfs/pack.sh $(BUILD)/busybox/busybox $(BUILD)/kernel/modules guest/initramfs/modules $(WORKLOAD) $@

# The same guest with the drivers of devices that the cloud kernel does not support.
$(DEVICES_INITRAMFS): $(WORKLOAD) $(wildcard guest/initramfs/*) $(BUILD)/kernel-devices/.done $(BUILD)/busybox/.done
	guest/initramfs/pack.sh $(BUILD)/busybox/busybox $(BUILD)/kernel-devices/modules guest/initramfs/modules-devices $(WORKLOAD) $@

.PHONY: build
build: ## build the program
	cargo build --locked --release --package hikkoshi

# For distributions: `make install PREFIX=/usr DESTDIR=...`. Installs what is built, so that the
# features of the build stay: `cargo build --release --locked --features libvirt -p hikkoshi`. Needs
# nothing of what `make setup` fetches.
PREFIX ?= /usr/local
PROGRAM ?= target/release/hikkoshi
INSTALL_ROOT = $(DESTDIR)$(PREFIX)
UNIT_DIR ?= $(PREFIX)/lib/systemd/system
# Pacemaker looks in /usr/lib/ocf/resource.d only.
OCF_DIR ?= $(PREFIX)/lib/ocf/resource.d
SYSTEMD_UNITS = $(notdir $(wildcard packaging/systemd/*))
GENERATED := $(BUILD)/generated

.PHONY: install
install: ## install the program, manual pages, completions and units below DESTDIR and PREFIX
	@test -x $(PROGRAM) || { \
	    echo "$(PROGRAM) is missing: run \`cargo build --locked --release --package hikkoshi\` first" >&2; exit 1; }
	install -D -m 755 $(PROGRAM) $(INSTALL_ROOT)/bin/hikkoshi
	rm -rf $(GENERATED)
	mkdir -p $(GENERATED)/man $(GENERATED)/completions
	$(PROGRAM) generate --man $(GENERATED)/man --completions $(GENERATED)/completions
	install -d $(INSTALL_ROOT)/share/man/man1 $(DESTDIR)$(UNIT_DIR)
	install -m 644 $(GENERATED)/man/*.1 $(INSTALL_ROOT)/share/man/man1
	install -D -m 644 $(GENERATED)/completions/hikkoshi.bash $(INSTALL_ROOT)/share/bash-completion/completions/hikkoshi
	install -D -m 644 $(GENERATED)/completions/_hikkoshi $(INSTALL_ROOT)/share/zsh/site-functions/_hikkoshi
	install -D -m 644 $(GENERATED)/completions/hikkoshi.fish $(INSTALL_ROOT)/share/fish/vendor_completions.d/hikkoshi.fish
	install -D -m 644 packaging/tmpfiles.d/hikkoshi.conf $(INSTALL_ROOT)/lib/tmpfiles.d/hikkoshi.conf
	install -d $(INSTALL_ROOT)/libexec/hikkoshi
	install -m 755 packaging/libexec/* $(INSTALL_ROOT)/libexec/hikkoshi
	install -d $(DESTDIR)$(OCF_DIR)/hikkoshi
	sed 's#/usr/bin/hikkoshi#$(PREFIX)/bin/hikkoshi#' packaging/ocf/guest >$(DESTDIR)$(OCF_DIR)/hikkoshi/guest
	chmod 755 $(DESTDIR)$(OCF_DIR)/hikkoshi/guest
	for unit in $(SYSTEMD_UNITS); do \
	    sed -E 's#/usr/(bin|libexec|share/doc)/hikkoshi#$(PREFIX)/\1/hikkoshi#g' "packaging/systemd/$$unit" >"$(DESTDIR)$(UNIT_DIR)/$$unit" || exit 1; \
	    chmod 644 "$(DESTDIR)$(UNIT_DIR)/$$unit"; \
	done
	install -d $(INSTALL_ROOT)/share/doc/hikkoshi/docs/assets/monitoring $(INSTALL_ROOT)/share/doc/hikkoshi/docs/assets/schemas
	install -m 644 README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT $(INSTALL_ROOT)/share/doc/hikkoshi
	install -m 644 docs/*.md $(INSTALL_ROOT)/share/doc/hikkoshi/docs
	install -m 644 docs/assets/monitoring/* $(INSTALL_ROOT)/share/doc/hikkoshi/docs/assets/monitoring
	install -m 644 docs/assets/schemas/* $(INSTALL_ROOT)/share/doc/hikkoshi/docs/assets/schemas
	install -d $(INSTALL_ROOT)/share/doc/hikkoshi/examples
	cp --preserve=mode packaging/examples/* $(INSTALL_ROOT)/share/doc/hikkoshi/examples
	@test -n "$(DESTDIR)" || ! test -d /run/systemd/system || \
	    echo "now run: systemd-tmpfiles --create hikkoshi.conf && systemctl daemon-reload"

.PHONY: uninstall
uninstall: ## remove what `make install` has installed, unless a migration needs it
	@test -n "$(DESTDIR)" || packaging/libexec/check-removable
	rm -f $(INSTALL_ROOT)/bin/hikkoshi $(INSTALL_ROOT)/share/man/man1/hikkoshi.1 $(INSTALL_ROOT)/share/man/man1/hikkoshi-*.1
	rm -f $(INSTALL_ROOT)/share/bash-completion/completions/hikkoshi $(INSTALL_ROOT)/share/zsh/site-functions/_hikkoshi
	rm -f $(INSTALL_ROOT)/share/fish/vendor_completions.d/hikkoshi.fish $(INSTALL_ROOT)/lib/tmpfiles.d/hikkoshi.conf
	rm -f $(addprefix $(DESTDIR)$(UNIT_DIR)/,$(SYSTEMD_UNITS))
	rm -rf $(INSTALL_ROOT)/share/doc/hikkoshi $(INSTALL_ROOT)/libexec/hikkoshi
	rm -f $(DESTDIR)$(OCF_DIR)/hikkoshi/guest
	@test -n "$(DESTDIR)" || ! test -d /run/systemd/system || \
	    echo "now stop the units of hikkoshi that run, and run: systemctl daemon-reload"

# The program that packages and archives contain: with libvirt, and without paths of this machine.
PACKAGED := target/package/release/hikkoshi
CARGO_HOME ?= $(HOME)/.cargo

.PHONY: build-packaged
build-packaged: setup
	$(WITH_LIBVIRT) CARGO_TARGET_DIR=target/package \
	    RUSTFLAGS="--remap-path-prefix=$(CARGO_HOME)=/cargo --remap-path-prefix=$(CURDIR)=/hikkoshi" \
	    cargo build --locked --release --features libvirt --package hikkoshi

# Not part of `make test`: it needs the release build, and man and systemd-analyze.
.PHONY: test-install
test-install: build ## install below a temporary folder, check manual pages, completions and units, uninstall
	packaging/test-install.sh

# As root: both use Debian roots of their own (setup/lib/debian-roots.sh).
.PHONY: deb
deb: build-packaged ## build the Debian package, and check it with lintian: build/deb/hikkoshi_*.deb
	setup/setup.sh package-root
	packaging/deb/build.sh

.PHONY: test-deb
test-deb: deb guest ## install, use under systemd, upgrade and purge the package in fresh Debian roots
	setup/setup.sh fresh-root hosts-root
	packaging/deb/test.sh

# The quickest is part of test-guests.
.PHONY: test-privileges
test-privileges: guest ## move guests with the capabilities of docs/operating.md, and with one less
	cargo build --locked --release --package hikkoshi
	cargo test --locked --package hikkoshi-tests --test e2e -- --include-ignored privileges::

.PHONY: dist
dist: build-packaged ## archives for a release, with checksums and an SBOM: build/dist
	packaging/dist/build.sh
	packaging/dist/test.sh

.PHONY: test-dist
test-dist: dist ## build a release once more in another folder, and compare the bytes
	packaging/dist/reproduce.sh

.PHONY: check-publish
check-publish: ## `cargo publish --dry-run` for every library crate, and check what each has
	packaging/check-publish.sh

# Fetches and builds nothing that it does not need, both at once.
.PHONY: demo
demo: ## move a test guest between two QEMU processes, and print the result
	@echo "demo: fetching QEMU 10.0, a Debian kernel and busybox, and building hikkoshi (the first time: some two minutes)"
	@setup/setup.sh tools
	@$(MAKE) --no-print-directory --jobs=2 demo-guest demo-programs
	@target/demo/hikkoshi-demo $(ARGS)

.PHONY: demo-guest
demo-guest:
	@setup/setup.sh only qemu-10.0 kernel busybox
	@$(MAKE) --no-print-directory $(INITRAMFS)

.PHONY: demo-programs
demo-programs:
	cargo build --locked --profile demo --package hikkoshi --package hikkoshi-lab

# Every file whose first line names a shell; files that these source are checked with them.
SHELL_SCRIPTS = $(shell find . \( -path ./target -o -path ./build -o -path ./.git \) -prune \
    -o -type f -size -64k -exec awk 'FNR == 1 && /^\#!.*sh/ { print FILENAME } { nextfile }' {} +)

# Nothing is linked, so libFuzzer is not built. Dependencies were checked with the workspace's.
FUZZ_LINT := CUSTOM_LIBFUZZER_PATH=/not-linked/libfuzzer.a CARGO_TARGET_DIR=../target

# What needs nothing of `make setup` is checked while that downloads. rustdoc has clippy's features,
# so that cargo checks the dependencies once for both.
.PHONY: lint
lint: ## formatting, clippy, rustdoc, shell scripts and documents; warnings are errors
	@setup/setup.sh tools
	@$(MAKE) --no-print-directory --jobs=2 setup lint-without-setup
	$(WITH_LIBVIRT) cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
	cd fuzz && $(FUZZ_LINT) cargo clippy --quiet --locked -- -D warnings
	$(WITH_LIBVIRT) RUSTDOCFLAGS="-D warnings" \
	    cargo doc --quiet --locked --no-deps --workspace --all-features --document-private-items
	$(BUILD)/shellcheck/run --check-sourced $(SHELL_SCRIPTS)

.PHONY: lint-without-setup
lint-without-setup: check-docs
	.ci/test-retry.sh
	.ci/check-ignored.sh
	cargo fmt --all --check
	cd fuzz && cargo fmt --check
	cd ept/bochs && cargo fmt --check && cargo clippy --locked --release -- -D warnings
	cd ept && cargo fmt --all --check && $(EPT) cargo clippy --locked --workspace --all-targets -- -D warnings
	cd guest/nano && cargo fmt --check && CARGO_TARGET_DIR=../../target/nano cargo clippy --locked --release -- -D warnings

.PHONY: check-docs
check-docs: ## the documents' links, paths and width, and the width of comments
	cargo run --quiet --locked --package hikkoshi-docs

# Not part of `make test`: the advisories come from a database on GitHub. Without a network,
# `make deny DENY_CHECKS="bans licenses sources"` does the rest.
DENY_CHECKS ?= advisories bans licenses sources

.PHONY: deny
deny: ## check the dependencies' advisories, licences, duplicates and sources (needs cargo-deny)
	@cargo deny --version >/dev/null 2>&1 || { echo "cargo-deny is missing: cargo install --locked cargo-deny@0.20.2" >&2; exit 1; }
	@set -e; for manifest in Cargo.toml fuzz/Cargo.toml ept/Cargo.toml ept/bochs/Cargo.toml guest/nano/Cargo.toml; do \
	    echo "$$manifest"; \
	    cargo deny --locked --manifest-path $$manifest --config deny.toml check \
	        --allow unmatched-skip --allow license-not-encountered --allow license-exception-not-encountered \
	        $(DENY_CHECKS); \
	done

.PHONY: test-unit
test-unit: setup ## tests of the crates, without guests
# One test at a time: each engine test is two hosts with a dozen threads and a guest. In one cargo
# command, because cargo rebuilds everything for another selection of packages.
	cargo test --locked --workspace --exclude hikkoshi-tests --exclude hikkoshi-lab --exclude hikkoshi-vmm -- --test-threads=1

.PHONY: test-ept
test-ept: setup ## second-stage tables: all tests but the models, also under the real VMX instructions (in Bochs)
	cd ept && $(EPT) cargo test --locked --workspace

# loom replaces the atomics in every crate. A separate folder keeps both builds.
.PHONY: test-loom
test-loom: test-loom-pages test-loom-engine test-loom-ept ## loom models: page bitmap, state shared by the engine's threads, second-stage tables

# Part of `make test`: the claims of pages.
.PHONY: test-loom-pages
test-loom-pages: setup
	CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" cargo test --locked --profile loom --package hikkoshi-pages --lib --tests

.PHONY: test-loom-engine
test-loom-engine: setup
	CARGO_TARGET_DIR=target/loom RUSTFLAGS="--cfg loom" cargo test --locked --profile loom --package hikkoshi-engine --package hikkoshi-link --lib -- model

.PHONY: test-loom-ept
test-loom-ept: setup
	cd ept && CARGO_TARGET_DIR=../target/loom RUSTFLAGS="--cfg loom" cargo test --locked --profile loom --package hikkoshi-ept --lib --tests

.PHONY: test-guests
test-guests: guest-images browser ## the laboratory's own tests, and real guests moved between real QEMUs, and by the example monitor
	cargo build --locked --release --package hikkoshi
	cargo test --locked --package hikkoshi-lab --package hikkoshi-vmm --package hikkoshi-tests

# The moves of domains that were made: a table of docs/versions.md.
LIBVIRT_MOVES := $(abspath $(BUILD))/libvirt-moves

# Domains of real libvirt daemons, of 9.0 and of 12.9, and a few tests with 11.3. A move in all modes
# and a few quick tests are part of `make test`.
# CI: what cannot be tested is an error.
.PHONY: test-libvirt
test-libvirt: guest-images guest-debian openssh ## domains of libvirt: their monitors, `check`, and moves between two daemons
	setup/setup.sh libvirt-11.3 libvirt-12.9
	rm -f $(LIBVIRT_MOVES)
	$(WITH_LIBVIRT) cargo build --locked --features libvirt --package hikkoshi
	$(WITH_LIBVIRT) CI=true cargo test --locked --package hikkoshi-libvirt --features libvirt
	$(WITH_LIBVIRT) CI=true HIKKOSHI_LIBVIRT_MOVES=$(LIBVIRT_MOVES) HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- libvirt --include-ignored
	$(WITH_LIBVIRT) CI=true HIKKOSHI_LIBVIRT_MOVES=$(LIBVIRT_MOVES) HIKKOSHI_LIBVIRT=12.9 HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- libvirt --include-ignored --skip libvirt::versions::
	$(WITH_LIBVIRT) CI=true HIKKOSHI_LIBVIRT_MOVES=$(LIBVIRT_MOVES) HIKKOSHI_LIBVIRT=11.3 HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- libvirt::at_once:: libvirt::copied_disks:: libvirt::two_daemons::a_domain_is_moved_in --include-ignored
	@echo "| libvirt, QEMU | moved to | mode |"; echo "| --- | --- | --- |"; sort -u $(LIBVIRT_MOVES)

# One move with everything that is quick is part of test-guests.
.PHONY: test-control
test-control: guest ## real migrations that are shown, changed, switched and cancelled by commands
	cargo build --locked --release --package hikkoshi
	cargo test --locked --package hikkoshi-tests --test e2e -- check::in_progress:: control:: standard_error:: --include-ignored

# A move with a script in the place of ssh is part of `make test`.
# CI: what cannot be tested is an error.
.PHONY: test-ssh
test-ssh: guest-images openssh ## `migrate --ssh` with a real ssh, killed in post-copy; encrypted links
	cargo build --locked --release --package hikkoshi
	CI=true cargo test --locked --package hikkoshi-tests --test e2e -- connections:: --include-ignored

.PHONY: test-daemon
test-daemon: guest-images ## `hikkoshi daemon` for several guests: by invitations and certificates, QEMU and libvirt
	$(WITH_LIBVIRT) cargo build --locked --features libvirt --package hikkoshi
	$(WITH_LIBVIRT) CI=true HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- daemon:: --include-ignored

# The life of a guest is part of `make test`.
.PHONY: test-cluster
test-cluster: guest-images ## guests of a Pacemaker cluster: the resource agent in each stage of a move, nodes that fail
	$(WITH_LIBVIRT) cargo build --locked --features libvirt --package hikkoshi
	$(WITH_LIBVIRT) CI=true HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- agent:: --include-ignored
	$(WITH_LIBVIRT) CI=true HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test cluster -- --include-ignored --test-threads=1

# RELEASE: a tag or a revision; without it the newest tag before this one.
.PHONY: test-release-before
test-release-before: ## moves between this program and that of the release before, and resuming what that one has begun
	@set -e; release="$(RELEASE)"; [ -n "$$release" ] || release=$$(.ci/release-before.sh find); \
	if [ -z "$$release" ]; then echo "SKIPPED: there is no release before this one"; exit; fi; \
	$(MAKE) --no-print-directory guest; \
	cargo build --locked --release --package hikkoshi; \
	program=$$(.ci/release-before.sh build "$$release"); \
	CI=true HIKKOSHI_RELEASE_BEFORE=$$program \
	    cargo test --locked --package hikkoshi-tests --test e2e -- release_before:: --ignored

# One evacuation is part of `make test`.
.PHONY: test-evacuate
test-evacuate: guest-images ## `hikkoshi evacuate`: destinations and lines lost, Ctrl-C, guests that are refused, continued
	cargo build --locked --package hikkoshi
	CI=true HIKKOSHI_BIN=$(abspath target/debug/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- evacuate:: --include-ignored

# A move in each mode, and what is refused, are part of test-guests.
.PHONY: test-disks
test-disks: guest bindfs ## guests whose disks are copied with them: both QEMU versions, images, faults at each step
	cargo build --locked --release --package hikkoshi
	CI=true cargo test --locked --package hikkoshi-tests --test e2e -- disks::copied copied_disks --include-ignored

# A quiet guest is part of test-guests.
.PHONY: test-rates
test-rates: guest ## dirty rates, estimates and limits, with guests that write in several ways
	cargo build --locked --release --package hikkoshi
	CI=true cargo test --locked --package hikkoshi-tests --test e2e -- dirty_rate:: estimate:: limits:: named_downtime:: --include-ignored

# The machine should be quiet. For docs/status.md.
.PHONY: bench-status
bench-status: guest ## what it costs an engine to serve the status of a large guest
	cargo build --locked --release --package hikkoshi
	HIKKOSHI_BIN=$(abspath target/release/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- status:: --ignored --nocapture
	cargo test --locked --release --package hikkoshi-engine --lib -- what_counting_and_reading_cost --ignored --nocapture

.PHONY: docs-reports
docs-reports: guest browser ## record the moves whose reports docs/reading-a-report.md reads
	cargo build --locked --release --package hikkoshi
	HIKKOSHI_REPORTS=$(abspath docs/assets/reports) HIKKOSHI_BIN=$(abspath target/release/hikkoshi) cargo test --locked --package hikkoshi-tests --test e2e -- example_reports:: --ignored --nocapture

# A twelfth of most random interruptions, and every second step, are part of test-guests. This target prints the table.
.PHONY: drills
drills: guest-debian pacemaker ## fault injection: the table of docs/reliability.md
	cargo build --locked --release --package hikkoshi
	HIKKOSHI_DRILLS=$(abspath $(BUILD))/drills.md cargo test --locked --package hikkoshi-tests --test e2e -- --include-ignored fault_drills:: out_of_space:: completion:: links_cut:: killed_before_commit::
	cargo test --locked --package hikkoshi-tests --test e2e -- --include-ignored modes::asynchronous_faults:: modes::debian:: modes::kvm:: modes::paused_guests:: modes::repeats:: dashboard::resumed:: dashboard::reports:: recovery::after_commit:: recovery::cancel:: recovery::journals:: recovery::private_memory:: recovery::shutdown::
	HIKKOSHI_ROUNDS=50 cargo test --locked --package hikkoshi-tests --test cluster -- --include-ignored random_rounds
	@cat $(BUILD)/drills.md

# A sample of the rows is part of test-guests.
.PHONY: matrix
matrix: guest-devices ## move every kind of guest in every mode: the table of docs/matrix.md
	cargo build --locked --release --package hikkoshi
	cargo test --locked --package hikkoshi-lab --test guests -- --ignored
	HIKKOSHI_QEMU_VERSIONS=all cargo test --locked --package hikkoshi-qemu --test qemu -- --include-ignored --test-threads=1
	HIKKOSHI_MATRIX=$(abspath $(BUILD))/matrix.md cargo test --locked --package hikkoshi-tests --test e2e -- --include-ignored matrix::the_whole
	cargo test --locked --package hikkoshi-tests --test e2e -- --ignored destination_line:: memory::auxiliary:: memory::disk_files:: memory::layouts:: memory::returned:: memory::swapped:: memory::transparent_huge_pages:: modes::monitor_reads:: network::frames:: network::guests:: every_mode:: qemu_versions:: urgent_pages:: clocks::linux_guests:: network::passt:: untested_qemu::
	@cat $(BUILD)/matrix.md

# Emulated machines: minutes for each kernel.
KERNELS ?= 6.1 6.12 6.18 7.0 7.3
.PHONY: test-kernels
test-kernels: ## track writes under other kernels, in emulated machines: a table of docs/versions.md
	setup/setup.sh only qemu-10.0 kernel busybox kernels
	guest/kernels/test.sh $(KERNELS)

# A selection is part of test-guests.
.PHONY: direct-io
direct-io: guest ## move guests that read their disk by direct I/O, in every mode and with every I/O method
	cargo build --locked --release --package hikkoshi
	cargo test --locked --package hikkoshi-tests --test e2e -- --include-ignored direct_io::

.PHONY: test
test: lint ## lint, unit tests, the loom models of the page bitmap, and a sample of the tests with real guests
	@.ci/test.sh

$(WEB_INITRAMFS): $(INITRAMFS) $(wildcard guest/initramfs/web/*) $(BUILD)/apache/.done
	guest/initramfs/web/pack.sh $(INITRAMFS) $(BUILD)/apache/root $@

# Only this target downloads Apache, for the guest of the web benchmark.
.PHONY: guest-web
guest-web: guest
	@setup/setup.sh apache
	@$(MAKE) --no-print-directory $(WEB_INITRAMFS)

.PHONY: bench
bench: guest-web guest-debian ## benchmarks beside QEMU's own migration, and beside libvirt's
	$(WITH_LIBVIRT) cargo build --locked --release --features libvirt --package hikkoshi
	$(WITH_LIBVIRT) cargo run --locked --release --package hikkoshi-bench -- $(ARGS)

# The machine should be quiet.
.PHONY: bench-dashboard
bench-dashboard: ## CPU time and memory of the dashboard and its page for a guest of 1 TiB: for docs/dashboard.md
	cargo build --locked --release --package hikkoshi
	cargo test --locked --package hikkoshi-tests --test e2e --test pages -- dashboard::cost:: updates_of_a_large_guest --include-ignored --nocapture

.PHONY: fuzz
fuzz: ## fuzz each decoder and both state machines for FUZZ_SECONDS (needs a C++ compiler)
	.ci/fuzz.sh $(FUZZ_SECONDS) $(FUZZ_JOBS)

.PHONY: fuzz-add
fuzz-add: ## add found inputs to a fuzz target's archive: TARGET=wire_stream INPUTS="fuzz/found/..."
	fuzz/corpus.sh add $(TARGET) $(INPUTS)

.PHONY: clean
clean: ## remove everything that was built and downloaded
	rm -rf $(BUILD) target
