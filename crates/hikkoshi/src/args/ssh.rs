//! `migrate --ssh`: starts `receive` at the destination.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use hikkoshi_link::Address;

use super::habits;
use super::headings::SSH;

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SshArgs {
    /// Start `hikkoshi receive` on HOST by ssh, and move the guest there
    ///
    /// Needs --remote-template, --remote-qmp, or --domain. The invitation is read from the session.
    /// With --resume, starts `hikkoshi receive --resume` on HOST. The session is needed until the
    /// source has connected; afterwards it only brings the messages of HOST.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "[USER@]HOST",
        value_parser = parse_host,
        conflicts_with_all = ["address", "to", "plaintext", "tls_ca", "give_up"],
        help_heading = SSH
    )]
    pub ssh: Option<String>,

    /// Use this command instead of ssh, such as 'ssh -p 2222'
    ///
    /// It is called with HOST and one more argument, a command line for the shell of HOST. Words
    /// are separated by spaces; ' and " group words.
    #[arg(verbatim_doc_comment, long, value_name = "COMMAND", requires = "ssh", help_heading = SSH)]
    pub rsh: Option<Words>,

    /// hikkoshi on HOST, such as 'sudo -n hikkoshi' [default: hikkoshi]
    ///
    /// Words are separated as in --rsh. They are quoted for the shell of HOST.
    #[arg(verbatim_doc_comment, long, value_name = "COMMAND", requires = "ssh", help_heading = SSH)]
    pub remote_hikkoshi: Option<Words>,

    /// Start the destination's QEMU with the command line in FILE of HOST
    ///
    /// The file has the words of one command. {name} is the guest's name, {qmp} the path of the QMP
    /// socket. QEMU is ended if the guest stays at the source.
    #[arg(verbatim_doc_comment,
        long,
        value_name = "FILE",
        requires = "ssh",
        conflicts_with_all = ["remote_qmp", "remote_connect", "domain"],
        help_heading = SSH
    )]
    pub remote_template: Option<PathBuf>,

    /// Name of the guest of --remote-template [default: guest]
    #[arg(
        long,
        value_name = "NAME",
        requires = "remote_template",
        conflicts_with_all = ["remote_qmp", "remote_connect", "domain"],
        value_parser = super::guest_name::parse,
        help_heading = SSH
    )]
    pub remote_name: Option<String>,

    /// QMP socket of the QEMU process on HOST that waits for the guest
    #[arg(
        long,
        value_name = "PATH",
        requires = "ssh",
        conflicts_with = "remote_connect",
        help_heading = SSH
    )]
    pub remote_qmp: Option<PathBuf>,

    /// The libvirt daemon on HOST that gets the domain [default: qemu:///system]
    #[arg(
        long,
        value_name = "URI",
        requires_all = ["ssh", "domain"],
        conflicts_with = "qmp",
        help_heading = SSH
    )]
    pub remote_connect: Option<String>,

    /// Address to listen on at HOST
    ///
    /// [default: the address that ssh has connected to, with a free port]
    #[arg(verbatim_doc_comment,
        long,
        value_name = "ADDR",
        requires = "ssh",
        conflicts_with = "resume",
        help_heading = SSH
    )]
    pub remote_listen: Option<Address>,

    /// Another option for `receive` on HOST; can be repeated
    ///
    /// With "=", as in --remote-option=--allow-overcommit. It is quoted for the shell of HOST.
    #[arg(verbatim_doc_comment,
        long = "remote-option",
        value_name = "OPTION",
        requires = "ssh",
        allow_hyphen_values = true,
        help_heading = SSH
    )]
    pub remote_options: Vec<String>,
}

/// A host that ssh does not take for an option.
pub(super) fn parse_host(text: &str) -> Result<String, String> {
    match text {
        "" => Err("the host is missing".to_owned()),
        _ if text.starts_with('-') => Err("a host does not begin with '-'".to_owned()),
        _ if text.contains("://") => {
            let what = habits::address(text).unwrap_or_else(|| "is not a host".to_owned());
            Err(format!("'{text}' {what}"))
        }
        _ => Ok(text.to_owned()),
    }
}

/// A command as words: at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Words {
    /// The program.
    pub program: String,
    /// Its first arguments.
    pub arguments: Vec<String>,
    /// As it was given.
    text: String,
}

impl Words {
    /// One word.
    pub(crate) fn one(word: &str) -> Self {
        Self {
            program: word.to_owned(),
            arguments: Vec::new(),
            text: word.to_owned(),
        }
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Words {
    type Err = String;

    /// Separates words at spaces. Quotation marks group what is between them; there are no other
    /// special characters.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quote = None;
        for c in text.chars() {
            match quote {
                Some(end) if c == end => quote = None,
                Some(_) => word.get_or_insert_default().push(c),
                None if c == '\'' || c == '"' => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                None if c.is_whitespace() => words.extend(word.take()),
                None => word.get_or_insert_default().push(c),
            }
        }
        if let Some(quote) = quote {
            return Err(format!("a {quote} is not closed"));
        }
        words.extend(word);
        let mut words = words.into_iter();
        match words.next() {
            Some(program) if !program.is_empty() => Ok(Self {
                program,
                arguments: words.collect(),
                text: text.to_owned(),
            }),
            _ => Err("there is no program in it".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let words: Words = text.parse().unwrap();
        assert_eq!(words.to_string(), text);
        [vec![words.program], words.arguments].concat()
    }

    #[test]
    fn quotation_marks_group_words() {
        assert_eq!(words(" ssh  -p 22"), ["ssh", "-p", "22"]);
        assert_eq!(
            words(r#"'/a b/ssh' -o "User x"y '' "it's" \"#),
            ["/a b/ssh", "-o", "User xy", "", "it's", r"\"]
        );
        for bad in ["", "  ", "''", "ssh 'x", "\""] {
            assert!(bad.parse::<Words>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_not_an_option_of_ssh() {
        assert!(parse_host("-oProxyCommand=x").is_err());
        assert!(parse_host("").is_err());
        assert_eq!(parse_host("root@h-1").unwrap(), "root@h-1");
        let refused = parse_host("http://h2/").unwrap_err();
        assert_eq!(refused, "'http://h2/' is not a host");
    }
}
