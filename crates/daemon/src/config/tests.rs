//! What the daemon's configuration says, and what is refused in it.

use farbus_io_linux::usb::{ActiveInterface, PluggedDevice};
use farbus_model::descriptor::DeviceDescriptor;
use farbus_model::{DescriptorSet, UsbSpeed};

use super::*;

#[test]
fn empty_configuration_has_defaults_and_shares_nothing() {
    let config = DaemonConfig::parse("").unwrap();
    assert!(config.is_default_listen && config.local_users.is_empty());
    assert_eq!(config.listen, [local_shares::place_of_daemon()]);
    assert!(config.shares.is_empty() && config.rules.is_empty() && config.attachments.is_empty());
    let none = DaemonConfig::parse("plain.listen = []").unwrap();
    assert!(none.listen.is_empty());
    let silence = |text: &str| DaemonConfig::parse(text).map(|config| config.plain_silence);
    assert_eq!(silence(""), Ok(None));
    assert_eq!(silence("plain.silence = 60"), Ok(Some(Duration::from_secs(60))));
    assert!(silence("plain.silence = 1").unwrap_err().1.contains("2 to 3600"));
    let local = DaemonConfig::parse("plain = {listen=['unix:/run/s.sock'], socket_mode='660'}").unwrap();
    assert_eq!(
        (&local.listen, local.broker_policy().socket_mode),
        (&vec!["unix:/run/s.sock".parse().unwrap()], "660".parse().unwrap())
    );
}

#[test]
fn labels_place_and_comment_of_a_device_are_read_and_checked() {
    let config = DaemonConfig::parse(
        "share=[{what='zero', name='board', labels={board='imx8', rev='b'}, place='shelf 3', comment='noisy'}]\n\
             usb=[{class='communications', name='console', labels={board='imx8'}}, {class='printer'}]",
    );
    let notes = config.unwrap().notes;
    assert_eq!(notes.of("board").in_a_line(), "board=imx8 rev=b place=shelf 3");
    assert_eq!(notes.of("board").comment.as_deref(), Some("noisy"));
    assert_eq!(notes.of("console2").in_a_line(), "board=imx8", "a rule names several devices");
    assert!(notes.of("board2").is_empty() && notes.of("usb").is_empty());
    for (text, why) in [
        ("share=[{what='zero', labels={'a b'='x'}}]", "no name of a label"),
        ("share=[{what='zero', labels={place='x'}}]", "beside the labels"),
        ("share=[{what='zero', comment=\"\\u001b[2J\"}]", "not shown"),
        ("share=[{what='usb:046d:c52b', place='here'}]", "name = "),
        ("usb=[{class='printer', place='here'}]", "name = "),
        ("usb=[{class='printer', share=false, name='x', place='here'}]", "name = "),
    ] {
        let (span, message) = DaemonConfig::parse(text).unwrap_err();
        assert!(span.is_some() && message.contains(why), "{text}: {message}");
    }
}

#[test]
fn packaged_example_configuration_parses() {
    let text = include_str!("../../../../packaging/farbus.toml");
    let uncommented: String =
        text.lines().map(|line| format!("{}\n", line.strip_prefix("#: ").unwrap_or(line))).collect();
    DaemonConfig::parse(text).unwrap_or_else(|(_, message)| panic!("{message}"));
    let config = DaemonConfig::parse(&uncommented).unwrap_or_else(|(span, message)| panic!("{message} {span:?}"));
    assert_eq!((config.shares.len(), config.rules.len(), config.attachments.len()), (2, 3, 4));
    assert_eq!((config.listen.len(), config.allow.len(), config.secure.len()), (2, 1, 1));
    assert!(config.joined.is_some_and(|joined| joined.host == "left" && joined.part.is_none()));
}

#[test]
fn paired_hosts_are_served_everywhere_unless_addresses_are_named() {
    let secure = |text: &str| DaemonConfig::parse(text).map(|config| (config.secure, config.announce_secure));
    assert_eq!(secure(""), Ok((vec![], false)));
    assert_eq!(secure("[secure]"), Ok((vec!["[::]:3241".parse().unwrap()], true)));
    let here = vec!["127.0.0.1:3241".parse().unwrap(), "10.0.0.1:99".parse().unwrap()];
    assert_eq!(secure("secure = {listen=['127.0.0.1', '10.0.0.1:99'], announce=false}"), Ok((here, false)));
    let taken = "plain.listen = ['loopback']\nsecure.listen = ['127.0.0.1:3240']";
    assert!(secure(taken).is_err(), "plain USB/IP is there");
}

#[test]
fn broker_policy_grants_only_what_the_configuration_names() {
    let text = "secure.listen=['127.0.0.1']\nshare=[{what='disk:/a,ro'},{what='zero'}]\n\
                    attach=[{target='lab/x',via='kernel'},{target='lab/y',via='fuse',at='/mnt/y'},\
                    {target='lab/z',via='nbd',socket='/run/z.sock'},\
                    {target='lab/v',via='redir',listen='127.0.0.1'}]";
    let broker_policy = DaemonConfig::parse(text).unwrap().broker_policy();
    assert_eq!(broker_policy.images, [("/a".into(), true)]);
    assert_eq!(broker_policy.hosts, ["lab:3240"; 4]);
    let locations =
        [SocketLocation::Socket("/run/z.sock".into()), SocketLocation::Address("127.0.0.1:4000".parse().unwrap())];
    assert_eq!(broker_policy.places, locations.map(|location| (location, SocketAccess::default())));
    assert_eq!((broker_policy.plugs, broker_policy.mounts), (true, vec!["/mnt/y".into()]));
    assert_eq!(broker_policy.listen, [local_shares::place_of_daemon(), "127.0.0.1:3241".parse().unwrap()]);
    assert!(broker_policy.wanted.is_empty() && broker_policy.remove.is_empty() && broker_policy.config.is_none());
}

fn found(bus_id: &str, product: &str, class: [u8; 3]) -> PluggedDevice {
    let device = DeviceDescriptor { vendor: 0x46d, product: 0xc52b, product_string: 2, ..Default::default() };
    PluggedDevice {
        bus_id: bus_id.into(),
        bus: 1,
        number: 7,
        descriptors: DescriptorSet { device, strings: [(2, product.to_owned())].into(), ..DescriptorSet::default() },
        repairs: Default::default(),
        serial: None,
        speed: UsbSpeed::High,
        configuration: 1,
        interfaces: vec![ActiveInterface { number: 0, class, driver: None }],
        is_imported: false,
        node: "/dev/null".into(),
        obstacle: None,
    }
}

#[test]
fn plugged_in_devices_are_shared_as_shares_and_rules_select() {
    let all = [
        found("1-1", "Stick", [8, 6, 0x50]),
        found("1-2", "Keys", [3, 1, 1]),
        found("1-3", "Camera", [14, 1, 0]),
        found("1-4", "Other stick", [8, 6, 0x50]),
        PluggedDevice { is_imported: true, ..found("9-1", "Far stick", [8, 6, 0x50]) },
    ];
    let named = |text: &str| -> Vec<(String, String)> {
        let wanted = DaemonConfig::parse(text).map_err(|(_, message)| message).unwrap().wanted();
        all.iter().filter_map(|found| Some((found.bus_id.clone(), wanted.selected(found)?.name_of(found)))).collect()
    };
    let pair = |bus_id: &str, name: &str| (bus_id.to_owned(), name.to_owned());
    assert_eq!(named("usb = [{class='storage'}]"), [pair("1-1", "stick"), pair("1-4", "other-stick")]);
    assert_eq!(
        named("usb = [{share=false, port='1-4'}, {}, {class='keyboard', name='keys'}]"),
        [pair("1-1", "stick"), pair("1-2", "keys"), pair("1-3", "camera")],
    );
    assert_eq!(
        named("share = [{what='usb:1-2', name='desk'}, {what='zero'}]\nusb = [{class='video'}]"),
        [pair("1-2", "desk"), pair("1-3", "camera")],
        "a share means what it names, an input device too"
    );
    assert_eq!(named("share = [{what='zero'}]"), []);
    assert_eq!(named("usb = [{port='9-1'}]"), [pair("9-1", "far-stick")], "another machine's, by its port alone");
}

#[test]
fn share_or_rule_of_one_port_stands_for_its_first_device_and_says_what_is_followed() {
    let device = found("1-1", "Camera", [14, 1, 0]);
    let by_port = |text: &str| {
        let wanted = DaemonConfig::parse(text).map_err(|(_, message)| message).unwrap().wanted();
        let follow = wanted.selected(&device).unwrap().by_port;
        assert_eq!(wanted.selects_port("1-1"), follow.is_some(), "{text}");
        follow.map(|follow| follow.words().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    for whatever in ["share = [{what='usb:046d:c52b'}]", "usb = [{}]", "usb = [{port='1-*'}]"] {
        assert_eq!(by_port(whatever), None, "{whatever}");
    }
    for (text, follow) in [
        ("share = [{what='usb:1-1'}]", ""),
        ("usb = [{port='1-1'}]", ""),
        ("share = [{what='usb:1-1', follow='port'}]", "port"),
        ("share = [{what='usb:1-1,follow=18d1:9302', follow=['0483:df11']}]", "0483:df11 18d1:9302"),
        ("usb = [{port='1-*', follow=['18d1:9302']}]", "18d1:9302"),
    ] {
        assert_eq!(by_port(text).as_deref(), Some(follow), "{text}");
    }
}

#[test]
fn unnamed_shares_get_unique_names_in_order() {
    let config = DaemonConfig::parse("share = [{what='zero'}, {what='zero', name='zero2'}, {what='zero'}]").unwrap();
    let names: Vec<_> = config.shares.iter().map(|share| share.name.as_str()).collect();
    assert_eq!(names, ["zero", "zero2", "zero3"]);
}

#[test]
fn configuration_errors_name_the_place_and_what_is_allowed() {
    let cases = [
        ("[plain]\nlisten = [\"127.0.0.1\", \"0.0.0.0\"]", "2:24", "allow = "),
        ("[plain]\nlisten = [\"lab3\"]", "2:11", "no address to listen at"),
        ("[plain]\nlisten = [\"unix:/s\", \"unix:/s\"]", "2:22", "already"),
        ("[plain]\nsocket_mode = \"777\"", "2:15", "660 its group too"),
        ("[plain]\nallow = [\"10.0.0.1/8\"]", "2:10", "which address is meant"),
        ("[[share]]\n\nwhat = \"tape\"", "3:8", "disk:PATH"),
        ("[[share]]\nwhat = \"disk:x,rw\"", "2:8", "offset=BYTES"),
        ("[[share]]\nname = \"x\"", "1:1", "missing field `what`"),
        ("[[share]]\nwhat = \"zero\"\nwath = 1", "3:1", "`what`"),
        ("[[share]]\nwhat = \"zero\"\nname = \"1-1\"", "3:8", "one a letter"),
        ("[[share]]\nwhat = \"zero\"\nname = \"a;b\"", "3:8", "no name"),
        ("[[share]]\nwhat = \"zero\"\nname = \"a\"\n[[share]]\nwhat = \"zero\"\nname = \"a\"", "6:8", "another device"),
        ("[[share]]\nwhat = \"zero\"\nfollow = \"port\"", "3:10", "only a real device"),
        ("[[share]]\nwhat = \"usb:0001:0002\"\nfollow = \"port\"", "3:10", "names no port"),
        ("[[share]]\nwhat = \"usb:1-1\"\nfollow = [\"1-2\"]", "3:10", "name a make"),
        ("[[usb]]\nvendor = \"18d1\"\nfollow = \"port\"", "3:10", "names a port"),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nfollow = \"port\"", "4:10", "disks are never followed"),
        ("[[usb]]\nclass = \"disks\"", "2:9", "storage"),
        ("[[usb]]\nvendor = \"46d\"", "2:10", "four hexadecimal digits"),
        ("[[usb]]\nvendor = 1133", "2:10", "string"),
        ("[[attach]]\ntarget = \"lab3\"", "2:10", "lab3/disk"),
        (
            "[[attach]]\ntarget = \"a/b\"\nvia = \"magic\"",
            "3:7",
            "kernel, uas, fuse, nbd, redir, rfc2217, tcp, pty and auto",
        ),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nmode = \"write\"", "4:8", "exclusive (one who may write)"),
        ("[[attach]]\ntarget = \"a/b\"\nmode = \"read\"", "3:8", "\"nbd\" and \"uas\""),
        ("[[attach]]\ntarget = \"a/b\"\ncache = \"ahead\"", "3:9", "nothing is kept"),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\ncache = \"all\"", "4:9", "writeback"),
        ("[[attach]]\ntarget = \"a/b\"\nover = \"udp\"", "3:8", "tcp and quic"),
        ("[[attach]]\ntarget = \"a/b\"\nahead = \"on\"", "3:9", "auto and off"),
        ("[[attach]]\ntarget = \"a/b\"\nmodules = [\"zip\"]", "3:12", "there are lz4, zstd"),
        ("[[attach]]\ntarget = \"a/b\"\nlinks = 9", "3:9", "1 to 8 links"),
        ("[[attach]]\ntarget = \"a/b\"\nmodules = [\"record:file=k\"]", "3:12", "'farbus attach --module'"),
        ("allow_modules = [\"zip\"]", "1:18", "there are lz4, zstd"),
        ("[[attach]]\ntarget = \"a/b\"\ngrace = 121", "3:9", "wait 120 s"),
        ("[page]\nlisten = \"0.0.0.0:7240\"", "2:10", "\"unix\", or an address of the loopback"),
        ("[page]\nlisten = \"lab3\"", "2:10", "127.0.0.1:7240"),
        ("[page]", "1:1", "missing field `listen`"),
        ("[page]\nlisten = \"unix\"\ntls = true", "3:7", "expected a string"),
        ("[page]\nlisten = \"unix\"\ntls = \"lab3\"", "3:7", "0.0.0.0:7241"),
        ("[page]\nlisten = \"unix\"\nnames = [\"lab3\"]", "3:10", "tls = ADDRESS"),
        ("[page]\nlisten = \"unix\"\nport = 7240", "3:1", "`sandbox`"),
        ("peer_memory = 15", "1:15", "16 to 65536 MiB"),
        ("peer_devices = 0", "1:16", "1 to 65536 devices"),
        ("hold = 0", "1:8", "1 to 120 s"),
        ("[[attach]]\ntarget = \"a/b\"\nhold = 121", "3:8", "1 to 120 s"),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nhold = 26", "4:8", "25 s at most"),
        ("[[attach]]\ntarget = \"a/b\"\ngrace = \"long\"", "3:9", "expected u64"),
        ("[[attach]]\ntarget = \"a/b\"\nsocket = \"/s\"", "3:10", "via = \"nbd\", \"redir\""),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"redir\"\nlisten = \"0.0.0.0\"", "4:10", "no password"),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nlisten = \"10.0.0.7\"", "4:10", "no password"),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nat = \"/s\"", "4:6", "say 'socket'"),
        (
            "[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\n[[attach]]\ntarget = \"c/b\"\nvia = \"nbd\"",
            "5:10",
            "'socket = ' names another place",
        ),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nsocket_mode = \"660\"", "4:15", "go with 'socket'"),
        (
            "[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nsocket = \"/s\"\nsocket_mode = \"777\"",
            "5:15",
            "660 its group",
        ),
        ("[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nsocket = \"/s\"\nsocket_group = \"a b\"", "5:16", "no group"),
        (
            "[[attach]]\ntarget = \"a/b\"\nvia = \"nbd\"\nsocket = \"/s\"\nsocket_mode = \"600\"\nsocket_group = \"kvm\"",
            "6:16",
            "660 lets it connect",
        ),
        ("[[attach]]\ntarget = \"a/b\"\nat = \"/mnt\"", "3:6", "via = \"fuse\""),
        ("[[attach]]\ntarget = \"a/b\"\n[[attach]]\ntarget = \"a:3240/b\"", "4:10", "attached twice"),
        ("[secure]\nlisten = [\"lab3\"]", "2:11", "no address to listen at"),
        ("[secure\n", "1:8", ""),
        ("[nonsense]", "1:2", "`plain`"),
    ];
    for (text, location, expected) in cases {
        let (span, message) = DaemonConfig::parse(text).unwrap_err();
        let (line, column, _) = place_of(text, span.expect(text).start);
        assert_eq!(format!("{line}:{column}"), location, "{text}: {message}");
        assert!(message.contains(expected), "{text}: {message}");
    }
}

/// A configuration is taken, or refused with a place in it.
#[test]
fn fuzz_configuration() {
    let example = include_str!("../../../../packaging/farbus.toml");
    let parts: Vec<String> = example.split("\n\n").map(|part| part.replace("#: ", "")).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    const WORDS: [&str; 14] = [
        "[[share]]",
        "[secure]",
        "listen = ",
        "= -1",
        "= 1e99",
        "''",
        "\"\\u0000\"",
        "[[[",
        "name = ",
        "true",
        "9999999999999999999",
        "= [",
        "\n",
        "= {",
    ];
    // The lines of each table: a file of any of them is TOML, so that keys and values are what is refused.
    let is_key = |line: &&str| line.split(['=', '#']).next().is_some_and(|key| !key.trim().is_empty());
    let is_table = |line: &str| line.starts_with('[') && line.ends_with(']');
    let mut tables: Vec<(&str, Vec<&str>)> = vec![("", Vec::new())];
    let lines = example.lines().map(|line| line.strip_prefix("#: ").unwrap_or(line));
    for line in lines.filter(|line| !line.starts_with('#')).filter(is_key) {
        if is_table(line) {
            tables.push((line, Vec::new()));
        } else if let (true, Some((_, lines))) = (line.contains(" = "), tables.last_mut()) {
            lines.push(line);
        }
    }
    assert!(tables.len() > 5 && tables.iter().map(|(_, lines)| lines.len()).sum::<usize>() > 20, "{tables:?}");
    let values: Vec<&str> =
        tables.iter().flat_map(|(_, lines)| lines).filter_map(|line| line.split_once(" = ")).map(|(_, v)| v).collect();
    let numbers = ["0", "-1", "1", "70000", "9999999999", "1.5", "true", "''", "[]", "[1]", "{}", "\"a b\"", "\"/\""];
    crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_configuration", |input| {
        let text = if input.once_in(3) {
            input.text(&parts, &WORDS)
        } else {
            let mut text = String::new();
            for _ in 0..1 + input.below(4) {
                let (name, lines) = &tables[input.below(tables.len() as u32) as usize];
                text.push_str(name);
                text.push('\n');
                for line in lines {
                    if input.once_in(2) {
                        continue;
                    }
                    let (key, value) = line.split_once(" = ").unwrap_or((line, "1"));
                    let value = match input.below(8) {
                        0 => input.pick(&values),
                        1 => input.pick(&numbers),
                        _ => value,
                    };
                    text.push_str(&format!("{key} = {value}\n"));
                }
            }
            text
        };
        if let Err(error) = DaemonConfig::parse_file(Path::new("/etc/farbus.toml"), &text) {
            let message = error.to_string();
            assert!(message.contains("/etc/farbus.toml") && message.len() < 20_000, "{message}");
        }
    });
}
