//! Tests of what of a description is refused, and of what is written of it for libvirt.

use super::*;
use proptest::prelude::*;

const XML: &str = "<domain type='qemu' id='3'><name>guest</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid><devices>
    <interface type='bridge'><mac address='52:54:00:aa:bb:cc'/><source bridge='br0'/>
    <target dev='vnet4'/><model type='virtio'/><alias name='net0'/></interface>
    <interface type='user'><mac address='52:54:00:aa:bb:cd'/><alias name='net1'/></interface>
    </devices></domain>";

const UUID: &str = "6695eb01-f6a4-8304-79aa-97f2502e193f";

fn check(xml: &str) -> Result<Description<'_>, DescriptionError> {
    Description::check(xml, "guest", UUID, false)
}

fn written(xml: &str) -> String {
    check(xml).unwrap().text(&Edits::new()).unwrap()
}

#[test]
fn a_description_must_be_of_the_offered_domain() {
    assert!(check(XML).is_ok());
    let error = |xml: &str| check(xml).unwrap_err();
    assert!(matches!(error("<domain"), DescriptionError::Syntax { .. }));
    let other = error(&XML.replace(UUID, "6695eb01-f6a4-8304-79aa-97f2502e1930")).to_string();
    assert_eq!(
        other,
        "the source offers the domain guest (6695eb01-f6a4-8304-79aa-97f2502e193f), and its description has the uuid \"6695eb01-f6a4-8304-79aa-97f2502e1930\""
    );
    for without in [
        XML.replace("'qemu'", "'lxc'"),
        XML.replace("domain", "network"),
        XML.replace("<name>guest</name>", ""),
        XML.replace("guest", "<!-- -->"),
        XML.replace("guest", "guest<i/>"),
    ] {
        let missing = error(&without);
        let is_missing = matches!(missing, DescriptionError::Missing { .. });
        let differs = matches!(missing, DescriptionError::Differs { .. });
        assert!(is_missing || differs, "{missing}");
    }
    // Neither external entities nor expansions.
    let entity = "<!DOCTYPE d [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><domain>&e;</domain>";
    assert!(matches!(error(entity), DescriptionError::Syntax { .. }));
    let long = format!("<domain>{}</domain>", " ".repeat(MAX_DOMAIN_XML));
    assert!(matches!(error(&long), DescriptionError::Syntax { .. }));
    assert!(matches!(
        error("<domain>\0"),
        DescriptionError::Syntax { .. }
    ));
    let with = |inner: &str| XML.replace("</devices>", &format!("</devices>{inner}"));
    let deep = with(&("<a>".repeat(30_000) + &"</a>".repeat(30_000)));
    assert!(error(&deep).to_string().contains("elements deep"));
    let prefixes: String = (0..100).map(|n| format!("xmlns:a{n}='u{n}' ")).collect();
    let many = with(&format!("<metadata {prefixes}/>"));
    assert!(error(&many).to_string().contains("64 namespaces"));
}

/// The whole value counts, as for libvirt, and blanks are part of a name.
#[test]
fn a_name_is_all_of_its_text() {
    for (described, expected) in [
        ("guest<!-- -->2", "guest2"),
        ("gu<?p i?>est", "guest"),
        (" guest", " guest"),
        ("<![CDATA[gue]]>s&#116;", "guest"),
    ] {
        let xml = XML.replace("<name>guest<", &format!("<name>{described}<"));
        match check(&xml) {
            Ok(_) => {
                assert_eq!(expected, "guest", "{described}");
                assert!(written(&xml).contains("<name>guest</name>"), "{described}");
            }
            Err(DescriptionError::Differs { described, .. }) => {
                assert_eq!(described, expected);
            }
            Err(error) => panic!("{described}: {error}"),
        }
    }
}

#[test]
fn elements_that_libvirt_may_read_in_another_way_are_refused() {
    let with = |inner: &str| XML.replace("<devices>", &format!("{inner}<devices>"));
    let repeated = |xml: &str| match check(xml) {
        Err(DescriptionError::Repeated { element }) => element,
        other => panic!("{xml}: {other:?}"),
    };
    assert_eq!(repeated(&with("<devices><tpm/></devices>")), "devices");
    assert_eq!(repeated(&with("<name>guest</name>")), "name");
    assert_eq!(repeated(&with(&format!("<uuid>{UUID}</uuid>"))), "uuid");
    assert_eq!(repeated(&with("<metadata/><metadata/>")), "metadata");
    let foreign = |xml: &str| match check(xml) {
        Err(DescriptionError::Foreign { name, .. }) => name,
        other => panic!("{xml}: {other:?}"),
    };
    assert_eq!(foreign(&with("<x:name xmlns:x='u'>db</x:name>")), "<name>");
    assert_eq!(
        foreign(&with("<on xmlns:x='u' x:a=''/>")),
        "the attribute 'a'"
    );
    assert_eq!(foreign(&with("<on xml:lang=''/>")), "the attribute 'lang'");
    assert_eq!(foreign(&XML.replace("id='3'", "xmlns='u'")), "<domain>");
    let q = format!("xmlns:q='{QEMU_NAMESPACE}'");
    let inside = XML.replace("<devices>", &format!("<devices><q:tpm {q}/>"));
    assert_eq!(foreign(&inside), "<tpm>");
    assert_eq!(
        foreign(&with(&format!("<q:commandline {q}><arg/></q:commandline>"))),
        "<arg>"
    );
    let kept = with("<metadata><x:a xmlns:x='u' x:b='1' xml:lang='en'/></metadata>");
    assert!(check(&kept).is_ok());
}

#[test]
fn what_libvirt_reads_is_what_was_checked() {
    let hidden = XML.replace(
        "<devices>",
        "<!-- +AC0ALQA+- <qemu:commandline xmlns:qemu='u'/> +ADwAIQAtAC0- --><?p i?><devices>",
    );
    let declared = format!("\u{feff}<?xml version='1.0' encoding='UTF-7'?>{hidden}");
    assert_eq!(written(&declared), written(XML));
    assert!(written(&declared).starts_with("<domain type=\"qemu\" id=\"3\"><name>"));
    let metadata = "<metadata><x:a xmlns:x=\"u\" x:b=\"&#10;&quot;\">&lt;\u{e4}&#13;\
                    <c xmlns=\"v\"><d xmlns=\"\"/><x:e/></c></x:a></metadata>";
    let with = XML.replace("<devices>", &format!("{metadata}<devices>"));
    assert!(written(&with).contains(metadata), "{}", written(&with));
}

/// What libvirt's library itself reads: by its driver for tests, which parses as the others do.
#[cfg(feature = "libvirt")]
#[test]
fn libvirt_reads_the_domain_that_was_checked() {
    use virt::domain::Domain;

    let connection = crate::connection::Connection::open("test:///default").unwrap();
    let read = |xml: &str| {
        // It has a domain with that UUID itself.
        let xml = xml.replacen("qemu", "test", 1).replace("6695", "6696");
        let domain = Domain::define_xml(&connection, &xml).unwrap();
        let read = (domain.get_name().unwrap(), domain.get_xml_desc(0).unwrap());
        domain.undefine_flags(0).unwrap();
        read
    };
    let xml = |names: &str, devices: &str| {
        format!(
            "<domain type='qemu'>{names}<uuid>{UUID}</uuid><memory>1024</memory><os>\
             <type>hvm</type></os>{devices}</domain>"
        )
    };
    let described = |xml: &str| Some(check(xml).ok()?.text(&Edits::new()).unwrap());
    let plain = xml("<name>guest</name>", "");
    let expected = read(&plain);
    assert_eq!(expected.0, "guest");
    assert_eq!(read(&described(&plain).unwrap()), expected);

    // In that encoding the comment ends early, and another name follows. (libxml2 2.9 ignores
    // the encoding of a text in memory, later versions do not.)
    let hidden = "<!-- +AC0ALQA+- <name>db</name> +ADwAIQAtAC0- --><name>guest</name>";
    let declared = "<?xml version='1.0' encoding='UTF-7'?>".to_owned() + &xml(hidden, "");
    assert_eq!(read(&described(&declared).unwrap()), expected);

    let split = xml("<name>guest<!-- -->2</name>", "");
    assert_eq!(read(&split).0, "guest2");
    assert_eq!(described(&split), None);

    let foreign = xml("<x:name xmlns:x='u'>guest</x:name><name>db</name>", "");
    assert_eq!(read(&foreign).0, "db");
    assert_eq!(described(&foreign), None);

    // It reads the first attribute of that name, and devices of any namespace and element.
    let disk = "<devices><disk><target dev='sda'/><source x:file='/a' file='/b' xmlns:x='u'/>\
                </disk></devices>";
    let two = xml(
        "<name>guest</name>",
        &format!("{disk}<devices><watchdog model='ib700'/></devices>"),
    );
    let (_, desc) = read(&two);
    assert!(
        desc.contains("file='/a'") && desc.contains("ib700"),
        "{desc}"
    );
    assert_eq!(described(&two), None);
    assert_eq!(described(&xml("<name>guest</name>", disk)), None);
}

#[test]
fn qemus_own_arguments_are_refused() {
    let with = XML.replace("<devices>", "<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:arg value='-drive'/></q:commandline><devices>");
    let error = check(&with).unwrap_err().to_string();
    assert!(error.contains("<qemu:commandline>"), "{error}");
    assert!(Description::check(&with, "guest", UUID, true).is_ok());
}

#[test]
fn the_states_of_emulated_tpms_are_where_libvirt_keeps_them() {
    let folders = |xml: &str| {
        let with = XML.replace("<devices>", &format!("<devices>{xml}"));
        check(&with).unwrap().tpm_folders(UUID)
    };
    let default = PathBuf::from(format!("/var/lib/libvirt/swtpm/{UUID}"));
    assert!(folders("").is_empty());
    let of = |backend: &str| folders(&format!("<tpm model='tpm-crb'>{backend}</tpm>"));
    assert_eq!(of("<backend type='emulator'/>"), [default]);
    let named = "<backend type='emulator'><source type='dir' path='/states/1'/></backend>";
    assert_eq!(of(named), [PathBuf::from("/states/1")]);
    assert!(of("<backend type='external'><source path='/socket'/></backend>").is_empty());
    assert!(folders("<other><tpm><backend type='emulator'/></tpm></other>").is_empty());
}

#[test]
fn what_a_snapshot_says_of_the_domain_is_checked() {
    let snapshot = |inner: &str| {
        format!(
            "<domainsnapshot><name>s</name><description>&lt;</description>{inner}</domainsnapshot>"
        )
    };
    let check = |xml: &str| {
        Description::check_snapshot(xml, "guest", UUID, false)
            .and_then(|checked| checked.text(&Edits::new()))
    };
    let inactive = |xml: &str| {
        let open = xml.replace("<domain ", "<inactiveDomain ");
        open.replace("</domain>", "</inactiveDomain>")
    };
    let both = snapshot(&(XML.to_owned() + &inactive(XML)));
    assert!(
        check(&both)
            .unwrap()
            .contains("<inactiveDomain type=\"qemu\"")
    );
    assert!(check(&snapshot("")).is_ok(), "an old one");
    let missing = check(XML).unwrap_err();
    assert!(
        matches!(missing, DescriptionError::Missing { .. }),
        "{missing}"
    );
    let twice = check(&snapshot(&(XML.to_owned() + XML))).unwrap_err();
    assert!(
        matches!(twice, DescriptionError::Repeated { .. }),
        "{twice}"
    );
    let other = XML.replace(UUID, "6695eb01-f6a4-8304-79aa-97f2502e1930");
    let arguments = format!("<q:commandline xmlns:q='{QEMU_NAMESPACE}'/></domain>");
    let arguments = XML.replace("</domain>", &arguments);
    for xml in [
        other.clone(),
        inactive(&other),
        arguments.clone(),
        inactive(&arguments),
    ] {
        check(&snapshot(&xml)).unwrap_err();
    }
    let foreign = check(&snapshot("<x:domain xmlns:x='u'/>")).unwrap_err();
    assert!(
        matches!(foreign, DescriptionError::Foreign { .. }),
        "{foreign}"
    );
}

#[test]
fn cards_have_their_devices() {
    let cards = cards(XML);
    let names: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
    assert_eq!(names, ["net0", "net1"]);
    assert_eq!(cards[0].address, [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc]);
    assert_eq!(cards[0].interface.as_deref(), Some("vnet4"));
    assert_eq!(cards[1].interface, None);
}

/// What a document says, whatever its prefixes are.
fn meaning_of(node: Node<'_, '_>) -> String {
    let mut meaning = format!("<{:?}", node.tag_name());
    for attribute in node.attributes() {
        let (name, value) = (attribute.name(), attribute.value());
        meaning += &format!(" {:?}{name}={value:?}", attribute.namespace());
    }
    let mut text = String::new();
    for child in node.children() {
        if child.is_text() {
            text += child.text().unwrap();
        } else if child.is_element() {
            meaning += &format!("{text:?}{}", meaning_of(child));
            text.clear();
        }
    }
    meaning + &format!("{text:?}>")
}

fn content() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("<!-- <a> -->".to_owned()),
        Just("<?p <b>?>".to_owned()),
        Just("<![CDATA[<&\"'\r\n]]>".to_owned()),
        Just("&lt;&amp;&gt;&quot;&apos;&#10;&#13;&#x9;]]&gt;".to_owned()),
        "[ -%'-;=-~\r\n\tä水]{0,8}",
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let tag = prop_oneof![
            Just(["a", ""]),
            Just(["a", " b='&#10;&#9;&#13; &amp;\"&lt;' c=\"'\""]),
            Just(["x:a", " xmlns:x='u' x:b='1' b='2'"]),
            Just(["x:a", " xmlns:x='v' xmlns:y='v' y:b='1' xml:lang='en'"]),
            Just(["a", " xmlns='u'"]),
            Just(["a", " xmlns='' xmlns:x='&lt;w&gt;'"]),
        ];
        (tag, prop::collection::vec(inner, 0..5)).prop_map(|([tag, attributes], inner)| {
            format!("<{tag}{attributes}>{}</{tag}>", inner.concat())
        })
    })
}

proptest! {
    #[test]
    fn any_text_is_a_description_or_not(text: String) {
        let _ = check(&text);
        prop_assert!(cards(&text).is_empty());
    }

    #[test]
    fn a_description_is_written_with_its_meaning(content in content()) {
        let xml = XML.replace("<devices>", &format!("<metadata>{content}</metadata><devices>"));
        let Ok(description) = check(&xml) else { return Ok(()) };
        let text = description.text(&Edits::new()).unwrap();
        let again = Document::parse(&text).unwrap();
        prop_assert_eq!(meaning_of(again.root_element()), meaning_of(description.0.root_element()));
        let is_plain = |node: Node<'_, '_>| node.is_root() || node.is_element() || node.is_text();
        prop_assert!(again.descendants().all(is_plain) && text.starts_with("<domain"));
    }
}
