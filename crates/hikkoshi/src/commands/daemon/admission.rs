//! Which certificates may send which guests, and what receives them: the file of `--admit`.
//!
//! A line has a name in the source's certificate, a name of a guest, and options of `hikkoshi
//! invite`. The first line that fits is used. Or it has a name and `--inquire`: such a certificate
//! may ask about all guests of this host; others, about those that they may send.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use hikkoshi_link::{Address, PeerCertificate};

use super::request::{Destination, Request};
use crate::args::{self, Command, Words, parse_guest_name};
use crate::commands::operator_file;

/// What stands for every certificate, and at the end of a guest's name for every end.
const ANY: &str = "*";

/// A guest's name, for options that are only checked.
const ANY_GUEST: &str = "guest";

/// How long the source has to connect, once it has its invitation.
const WAIT: Duration = Duration::from_secs(60);

/// The second word of a line for a certificate that may ask about all guests.
const INQUIRE: &str = "--inquire";

/// The rules of a file.
#[derive(Debug, Default)]
pub(super) struct Admission {
    rules: Vec<Rule>,
    /// The certificates that may ask about all guests.
    askers: Vec<String>,
}

/// A certificate that may ask about this host.
#[derive(Debug)]
pub(super) enum Asker<'a> {
    /// About all guests.
    OfAll,
    /// About guests that one of these lines admits.
    OfItsGuests(Vec<&'a Rule>),
}

impl Asker<'_> {
    /// Whether it may know of the guest with this name.
    pub(super) fn may_see(&self, guest: &str) -> bool {
        match self {
            Self::OfAll => true,
            Self::OfItsGuests(rules) => rules.iter().any(|rule| rule.fits(guest)),
        }
    }

    /// Whether it may know of all guests.
    pub(super) fn may_see_all(&self) -> bool {
        matches!(self, Self::OfAll)
    }
}

/// A line about guests.
#[derive(Debug)]
pub(super) struct Rule {
    certificate: String,
    guest: String,
    options: Vec<String>,
}

impl Admission {
    /// Reads a file.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn read(file: &Path) -> Result<Self, String> {
        let parsed = operator_file::read(file).and_then(|text| Self::parse(&text));
        parsed.map_err(|why| format!("{} (--admit): {why}", file.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut admission = Self::default();
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                let added = admission.add(line);
                added.map_err(|why| format!("line {number}: {why}"))?;
            }
        }
        Ok(admission)
    }

    /// Adds a line.
    fn add(&mut self, line: &str) -> Result<(), String> {
        let Words {
            program: certificate,
            arguments,
            ..
        } = line.parse()?;
        if certificate != ANY && !PeerCertificate::can_be_for(&certificate) {
            return Err(format!(
                "'{certificate}' is not a host name, an IP address or {ANY}"
            ));
        }
        match arguments.split_first() {
            Some((first, [])) if first == INQUIRE => self.askers.push(certificate),
            Some((first, _)) if first == INQUIRE => {
                return Err(format!("nothing may follow {INQUIRE}"));
            }
            _ => self.rules.push(Rule::new(certificate, arguments)?),
        }
        Ok(())
    }

    /// What a host may know whose certificate `is_for` a name; `None`: no line has its certificate.
    pub(super) fn asker(&self, is_for: impl Fn(&str) -> bool) -> Option<Asker<'_>> {
        let is_its = |certificate: &str| certificate == ANY || is_for(certificate);
        if self.askers.iter().any(|asker| is_its(asker)) {
            return Some(Asker::OfAll);
        }
        let rules = self.rules.iter().filter(|rule| is_its(&rule.certificate));
        let rules: Vec<_> = rules.collect();
        (!rules.is_empty()).then_some(Asker::OfItsGuests(rules))
    }

    /// What receives a guest of this name from a source whose certificate `is_for` a name; `None`:
    /// no line fits.
    ///
    /// # Errors
    /// Why the line cannot be used for this name.
    pub(super) fn request(
        &self,
        is_for: impl Fn(&str) -> bool,
        guest: &str,
    ) -> Option<Result<Request, String>> {
        let fits = |rule: &&Rule| {
            (rule.certificate == ANY || is_for(&rule.certificate)) && rule.fits(guest)
        };
        self.rules.iter().find(fits).map(|rule| rule.request(guest))
    }
}

impl Rule {
    fn new(certificate: String, arguments: Vec<String>) -> Result<Self, String> {
        let mut arguments = arguments.into_iter();
        let rule = Self {
            certificate,
            guest: arguments.next().ok_or("the name of a guest is missing")?,
            options: arguments.collect(),
        };
        let begin = rule.guest.strip_suffix(ANY);
        if begin != Some("") {
            parse_guest_name(begin.unwrap_or(&rule.guest))
                .map_err(|why| format!("'{}': {why}", rule.guest))?;
        }
        // Any name: what is wrong with the options is reported when the daemon starts.
        let request = rule.request(ANY_GUEST)?;
        check_receiver(&request)?;
        Ok(rule)
    }

    /// Whether it is for guests of this name.
    fn fits(&self, guest: &str) -> bool {
        match self.guest.strip_suffix(ANY) {
            Some(begin) => guest.starts_with(begin),
            None => guest == self.guest,
        }
    }

    fn request(&self, guest: &str) -> Result<Request, String> {
        let of_source = |option: &&String| {
            ["--name", "--journal", "--withdraw"]
                .iter()
                .any(|other| option.starts_with(other))
        };
        if let Some(option) = self.options.iter().find(of_source) {
            return Err(format!("{option} cannot be given here"));
        }
        let options = self
            .options
            .iter()
            .map(|word| word.replace("{name}", guest));
        let words = ["hikkoshi", "invite"].map(str::to_owned).into_iter();
        let parsed = args::Args::try_parse_from(words.chain(options));
        let invite = match parsed.map(|args| args.command) {
            Ok(Command::Invite(invite)) => invite,
            Ok(_) => return Err("these are not options of 'hikkoshi invite'".to_owned()),
            Err(error) => return Err(said(&error)),
        };
        let request = Request::from_options(&invite, WAIT);
        let mut request = request.ok_or("--template, --connect or --qmp is missing")?;
        // The source describes the domain, its name included.
        if let Destination::Connect(_) = request.destination {
            request.options.push(format!("--only-domain={guest}"));
        }
        Ok(Request {
            name: Some(guest.to_owned()),
            ..request
        })
    }
}

/// Checks the options of the receiver that would be started.
fn check_receiver(request: &Request) -> Result<(), String> {
    let listen = Address::Unix("/receiver".into());
    let advertised = Address::Tcp("host:1".to_owned());
    let own = request.receiver_arguments(&listen, &advertised);
    // As each receiver is started.
    let words = [
        "hikkoshi",
        "receiver",
        ANY_GUEST,
        "--journal=/run",
        "--json=/result",
    ];
    let words = words.into_iter().map(OsString::from);
    match args::Args::try_parse_from(words.chain(own)) {
        Ok(_) => Ok(()),
        Err(error) if error.use_stderr() => Err(format!("--receive-option: {}", said(&error))),
        // Help, or the version.
        Err(_) => Err("--receive-option: nothing would be received".to_owned()),
    }
}

/// What is wrong with a command line, in one line.
fn said(error: &clap::Error) -> String {
    // The usage follows after an empty line.
    let text = error.to_string();
    let said = text.lines().take_while(|line| !line.is_empty());
    let said: Vec<_> = said.map(str::trim).collect();
    said.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
# hosts of the first row
host1.example  web*  --template '/etc/hikkoshi/{name} web.template' --wait-for 5m
host1.example  db    --qmp /run/guests/{name}/qmp --receive-option=--allow-overcommit
10.0.0.2       *     --connect qemu:///system
  *            any-* --template /etc/any
";

    #[test]
    fn the_first_line_that_fits_is_used() {
        let rules = Admission::parse(RULES).unwrap();
        let request = |certificate: &str, guest: &str| {
            let found = rules.request(|name| name == certificate, guest)?;
            let request = found.unwrap();
            assert_eq!(request.name.as_deref(), Some(guest));
            Some((request.destination, request.wait_seconds, request.options))
        };
        let template = |path: &str| Destination::Template(path.into());
        assert_eq!(
            request("host1.example", "web7"),
            Some((template("/etc/hikkoshi/web7 web.template"), 300, vec![]))
        );
        assert_eq!(
            request("host1.example", "db"),
            Some((
                Destination::Qmp("/run/guests/db/qmp".into()),
                60,
                vec!["--allow-overcommit".to_owned()]
            ))
        );
        let domain = Destination::Connect("qemu:///system".to_owned());
        let only = vec!["--only-domain=db".to_owned()];
        assert_eq!(request("10.0.0.2", "db"), Some((domain, 60, only)));
        assert_eq!(
            request("host9.example", "any-1"),
            Some((template("/etc/any"), 60, vec![]))
        );
        for (certificate, guest) in [
            ("host1.example", "db2"),
            ("host1.example", "xweb"),
            ("host2.example", "web7"),
            ("*", "web7"),
        ] {
            assert_eq!(request(certificate, guest), None, "{certificate} {guest}");
        }
        let nothing = Admission::parse("# nothing\n").unwrap();
        assert!(nothing.rules.is_empty() && nothing.askers.is_empty());
    }

    #[test]
    fn a_certificate_may_ask_about_the_guests_that_it_may_send() {
        let lines = "\
host1.example  web*  --template /t
host1.example  db    --template /t
ops.example    --inquire
";
        let rules = Admission::parse(lines).unwrap();
        let sees = |rules: &Admission, certificate: &str, guest: &str| {
            let asker = rules.asker(|name| name == certificate);
            asker.map(|asker| asker.may_see(guest))
        };
        for (certificate, guest, expected) in [
            ("host1.example", "web1", Some(true)),
            ("host1.example", "db", Some(true)),
            ("host1.example", "other", Some(false)),
            ("ops.example", "other", Some(true)),
            ("host2.example", "web1", None),
            ("*", "web1", None),
        ] {
            let seen = sees(&rules, certificate, guest);
            assert_eq!(seen, expected, "{certificate} {guest}");
        }
        // It sends none.
        assert!(
            rules
                .request(|name| name == "ops.example", "web1")
                .is_none()
        );
        let any = Admission::parse("* --inquire\n").unwrap();
        assert_eq!(sees(&any, "host2.example", "web1"), Some(true));
    }

    #[test]
    fn lines_that_cannot_be_used_are_reported_with_their_number() {
        for (line, why) in [
            ("host1.example", "guest is missing"),
            ("host1.example web", "<--template <FILE>|"),
            ("host1.example we*b --template /t", "'we*b'"),
            ("host1.example ../web --template /t", "'../web'"),
            ("*.example web --template /t", "'*.example'"),
            ("*.example --inquire", "'*.example'"),
            (
                "host1.example --inquire --template /t",
                "nothing may follow",
            ),
            ("host1.example --enquire", "'--enquire'"),
            (
                "host1.example web --template /t --qmp /q",
                "cannot be used with",
            ),
            ("host1.example web --template /t --name x", "--name"),
            ("host1.example web --template /t --journal=/j", "--journal"),
            ("host1.example web --template /t --nonsense", "--nonsense"),
            ("host1.example web --template '/t", "not closed"),
            (
                "host1.example web --template /t --receive-option=--nonsense",
                "--receive-option: unexpected argument '--nonsense'",
            ),
            (
                "host1.example web --template /t --receive-option=--listen=h:1",
                "'--listen <ADDR>' cannot be used multiple times",
            ),
            (
                "host1.example web --qmp /q --receive-option=--fault-threads=x",
                "invalid value 'x'",
            ),
            (
                "host1.example web --qmp /q --receive-option=--json=/j",
                "'--json <FILE>' cannot be used multiple times",
            ),
            (
                "host1.example web --qmp /q --receive-option=--help",
                "nothing would be received",
            ),
        ] {
            let error = Admission::parse(&format!("# a comment\n\n{line}\n")).unwrap_err();
            let expected = error.starts_with("line 3: ") && error.contains(why);
            assert!(expected, "{line}: {error}");
        }
        let error = Admission::read(Path::new("/nowhere/admit")).unwrap_err();
        assert!(error.contains("/nowhere/admit"), "{error}");
    }
}
