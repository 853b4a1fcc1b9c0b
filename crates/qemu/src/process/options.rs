//! The command line with which QEMU was started: its words, as options.

use std::io::{self, Read};

use hikkoshi_linux::Process;
use serde_json::{Map, Value};

/// The longest command line that is read, in bytes (`ARG_MAX` is 2 MiB by default).
const MAX_COMMAND_LINE: u64 = 8 << 20;

/// The words of the process's command line, each of which ends with a zero byte.
pub(crate) fn read(process: &Process) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = process.open_proc("cmdline")?;
    file.take(MAX_COMMAND_LINE).read_to_end(&mut text)?;
    match text.is_empty() {
        true => Err(io::ErrorKind::InvalidData.into()),
        false => Ok(text),
    }
}

/// The options with which QEMU was started, by their names without hyphens, and their values.
pub(crate) fn started_options(process: &Process) -> io::Result<Vec<(String, String)>> {
    let text = read(process)?;
    let words = text.split(|byte| *byte == 0).skip(1);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    let options = parse(words).into_iter();
    let named = options.map(|option| (option.bare_name().to_owned(), option.value().to_owned()));
    Ok(named.collect())
}

/// Options without a value (`qemu-options.hx` of QEMU 7.2 and 10.0, x86-64).
const WITHOUT_VALUE: &str = "S alt-grab async-teardown audio-help ctrl-grab curses daemonize enable-fips enable-kvm \
    enable-sync-profile full-screen h help jitdump mem-prealloc nodefaults no-acpi no-fd-bootchk \
    no-hpet no-kvm no-kvm-irqchip no-kvm-pit no-kvm-pit-reinjection no-quit no-reboot no-shutdown \
    no-user-config nographic old-param only-migratable perfmap portrait preconfig s sdl semihosting \
    show-cursor singlestep snapshot usb version win2k-hack xen-attach xen-domid-restrict";

/// An option, or a disk image that is given without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opt {
    /// With its hyphens; empty for a disk image.
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

impl Opt {
    pub(crate) fn new(name: &str, value: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            value: Some(value.into()),
        }
    }

    pub(crate) fn flag(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            value: None,
        }
    }

    pub(crate) fn value(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }

    /// The words of a command line.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        let name = (!self.name.is_empty()).then_some(self.name.as_str());
        name.into_iter().chain(self.value.as_deref())
    }

    /// The name without its hyphens.
    pub(crate) fn bare_name(&self) -> &str {
        bare(&self.name)
    }

    /// Whether that is its name without its hyphens.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.bare_name() == name
    }

    /// The value of a key in `a,key=value,b`. Commas in values are doubled. In `first` the key of
    /// the first part may be left out. JSON values (`{…}`) are read as well.
    pub(crate) fn get(&self, key: &str, first: bool) -> Option<String> {
        let value = self.value();
        if value.trim_start().starts_with('{') {
            let json: serde_json::Value = serde_json::from_str(value).ok()?;
            return match json.get(key)? {
                serde_json::Value::String(text) => Some(text.clone()),
                serde_json::Value::Bool(flag) => Some(if *flag { "on" } else { "off" }.to_owned()),
                serde_json::Value::Number(number) => Some(number.to_string()),
                _ => None,
            };
        }
        for (index, part) in parts(value).into_iter().enumerate() {
            match part.split_once('=') {
                Some((name, value)) if name == key => return Some(value.to_owned()),
                None if index == 0 && first => return Some(part),
                _ => {}
            }
        }
        None
    }
}

impl Opt {
    /// Whether the value is JSON.
    fn is_json(&self) -> bool {
        self.value().trim_start().starts_with('{')
    }

    /// Replaces the value of `key`, or adds it; `None` removes it.
    pub(crate) fn set(&mut self, key: &str, to: Option<&str>) {
        if self.is_json() {
            let Ok(serde_json::Value::Object(mut json)) = serde_json::from_str(self.value()) else {
                return;
            };
            match to {
                Some(to) => json.insert(key.to_owned(), json_value(key, to)),
                None => json.remove(key),
            };
            self.value = Some(serde_json::Value::Object(json).to_string());
            return;
        }
        let is_key = |part: &String| part.split_once('=').is_some_and(|(name, _)| name == key);
        let mut all = parts(self.value());
        match (to, all.iter_mut().find(|part| is_key(part))) {
            (Some(to), Some(part)) => *part = format!("{key}={to}"),
            (Some(to), None) => all.push(format!("{key}={to}")),
            (None, _) => all.retain(|part| !is_key(part)),
        }
        self.value = Some(join(&all));
    }
}

/// A value in JSON. QEMU takes places that are numbers only as numbers there.
fn json_value(key: &str, value: &str) -> serde_json::Value {
    let is_number = matches!(key, "lun" | "nr" | "scsi-id" | "unit");
    match value.parse::<u64>() {
        Ok(number) if is_number => number.into(),
        _ => value.into(),
    }
}

fn bare(word: &str) -> &str {
    word.strip_prefix("--")
        .or(word.strip_prefix('-'))
        .unwrap_or(word)
}

/// The parts between single commas, with doubled commas made single.
pub(crate) fn parts(value: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = value.chars().peekable();
    while let Some(char) = chars.next() {
        if char == ',' {
            if chars.peek() == Some(&',') {
                chars.next();
            } else {
                parts.push(String::new());
                continue;
            }
        }
        if let Some(last) = parts.last_mut() {
            last.push(char);
        }
    }
    parts
}

/// The opposite of [`parts`].
pub(crate) fn join(parts: &[String]) -> String {
    let doubled: Vec<_> = parts.iter().map(|part| part.replace(',', ",,")).collect();
    doubled.join(",")
}

/// Parses the words behind the program. Names keep their hyphens.
pub(crate) fn parse(words: impl Iterator<Item = String>) -> Vec<Opt> {
    let mut found = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        let is_option = word.len() > 1 && word.starts_with('-');
        let has_value = is_option
            && !WITHOUT_VALUE
                .split_whitespace()
                .any(|known| known == bare(&word));
        found.push(match (is_option, has_value) {
            (false, _) => Opt {
                name: String::new(),
                value: Some(word),
            },
            (true, false) => Opt::flag(&word),
            (true, true) => Opt {
                name: word,
                value: words.next(),
            },
        });
    }
    found
}

/// A value by its keys: JSON, or `a,key=value,b`. `first` is the key of a first part without one;
/// a key like `file.filename` is one of the value `file`. `None`: it is not such a value.
pub(crate) fn keys(value: &str, first: &str) -> Option<Map<String, Value>> {
    if value.trim_start().starts_with('{') {
        return serde_json::from_str(value).ok();
    }
    let mut found = Map::new();
    for (index, part) in parts(value).iter().enumerate() {
        let (key, value) = match part.split_once('=') {
            Some(pair) => pair,
            None if index == 0 => (first, &**part),
            None => (&**part, "on"),
        };
        let mut inner = &mut found;
        let mut path = key.split('.').peekable();
        while let Some(key) = path.next() {
            if path.peek().is_none() {
                inner.insert(key.to_owned(), value.into());
                break;
            }
            let below = inner.entry(key).or_insert_with(|| Map::new().into());
            inner = below.as_object_mut()?;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opts(line: &str) -> Vec<Opt> {
        parse(line.split(' ').map(str::to_owned))
    }

    #[test]
    fn options_with_and_without_values_and_images() {
        let found = opts("-S --enable-kvm -m 64 disk.img -incoming defer -usb -name -S");
        let names: Vec<_> = found.iter().map(|opt| opt.name.as_str()).collect();
        assert_eq!(
            names,
            ["-S", "--enable-kvm", "-m", "", "-incoming", "-usb", "-name"]
        );
        assert_eq!(found[6].value(), "-S", "a value may look like an option");
        let words: Vec<_> = found.iter().flat_map(Opt::words).collect();
        assert_eq!(
            words.join(" "),
            "-S --enable-kvm -m 64 disk.img -incoming defer -usb -name -S"
        );
        assert!(found[1].is("enable-kvm"));
        let found = opts("-async-teardown -incoming defer");
        assert!(found[1].is("incoming"));
    }

    #[test]
    fn values_by_key() {
        let device = Opt::new("-device", "virtio-net-pci,id=n0,netdev=u,,1");
        assert_eq!(
            device.get("driver", true).as_deref(),
            Some("virtio-net-pci")
        );
        assert_eq!(device.get("id", false).as_deref(), Some("n0"));
        assert_eq!(device.get("netdev", false).as_deref(), Some("u,1"));
        assert_eq!(device.get("driver", false), None);
        let json = Opt::new("-device", r#"{"driver":"e1000","id":"n1"}"#);
        assert_eq!(json.get("id", false).as_deref(), Some("n1"));
        let json = Opt::new("-netdev", r#"{"type":"tap","vhost":true,"vhostfd":29}"#);
        assert_eq!(json.get("vhost", false).as_deref(), Some("on"));
        assert_eq!(json.get("vhostfd", false).as_deref(), Some("29"));
        assert_eq!(join(&parts("a,b=c,,d")), "a,b=c,,d");
    }

    #[test]
    fn values_have_their_keys_in_either_notation() {
        let json = serde_json::json!({
            "driver": "raw", "read-only": "on",
            "file": { "driver": "file", "filename": "/a,b" },
        });
        let text = "raw,read-only,file.driver=file,file.filename=/a,,b";
        for text in [text, &json.to_string()] {
            assert_eq!(keys(text, "driver").map(Value::from).as_ref(), Some(&json));
        }
        for odd in ["a=b,a.c=d", "{", r#"{"a":"#] {
            assert_eq!(keys(odd, "driver"), None, "{odd}");
        }
    }

    #[test]
    fn values_are_replaced_added_and_removed() {
        let set = |value: &str, key, to| {
            let mut option = Opt::new("-drive", value);
            option.set(key, to);
            option.value().to_owned()
        };
        assert_eq!(
            set("file=/a,,b,if=none", "file", Some("/c,d")),
            "file=/c,,d,if=none"
        );
        assert_eq!(set("if=none", "file", Some("/c")), "if=none,file=/c");
        assert_eq!(set("file=/a,if=none", "file", None), "if=none");
        assert_eq!(
            set(r#"{"driver":"e1000"}"#, "addr", Some("5.0")),
            r#"{"addr":"5.0","driver":"e1000"}"#
        );
        assert_eq!(
            set(r#"{"driver":"scsi-hd"}"#, "lun", Some("0")),
            r#"{"driver":"scsi-hd","lun":0}"#
        );
    }
}
