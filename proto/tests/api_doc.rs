//! docs/api.md is generated from the descriptor set; this test fails when it is out of date, and regenerates it under
//! WEIR_UPDATE=1.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and speaks to a person"
)]

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};

/// Comments of a file by the path of what they stand before (see descriptor.proto).
type Comments = BTreeMap<Vec<i32>, String>;

const MESSAGES: i32 = 4;
const ENUMS: i32 = 5;
const SERVICES: i32 = 6;
/// Fields of a message, values of an enum and methods of a service all have this number.
const MEMBERS: i32 = 2;

fn comments(file: &FileDescriptorProto) -> Comments {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations
        .filter_map(|location| {
            let text = location.leading_comments.as_ref()?;
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            Some((location.path.clone(), lines.join(" ").trim().to_owned()))
        })
        .collect()
}

fn comment(comments: &Comments, path: &[i32]) -> String {
    comments.get(path).cloned().unwrap_or_default().replace('|', "\\|")
}

fn short(name: &str) -> &str {
    name.trim_start_matches(".weir.v1.").trim_start_matches('.')
}

fn type_of(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let name = short(field.type_name());
    if let Some(entry) = message.nested_type.iter().find(|nested| name.ends_with(nested.name()))
        && entry.options.as_ref().is_some_and(|options| options.map_entry())
    {
        return format!("map<{}, {}>", type_of(message, &entry.field[0]), type_of(message, &entry.field[1]));
    }
    let base = match field.r#type() {
        Type::Message | Type::Enum => name.to_owned(),
        other => other.as_str_name().trim_start_matches("TYPE_").to_ascii_lowercase(),
    };
    let repeated = field.label() == Label::Repeated;
    let optional = field.proto3_optional();
    format!(
        "{}{base}",
        if repeated {
            "repeated "
        } else if optional {
            "optional "
        } else {
            ""
        }
    )
}

fn message(out: &mut String, message: &DescriptorProto, comments: &Comments, path: &[i32]) {
    writeln!(out, "\n### {}\n\n{}", message.name(), comment(comments, path)).unwrap();
    if message.field.is_empty() {
        return;
    }
    writeln!(out, "\n| field | type | |\n| --- | --- | --- |").unwrap();
    for (index, field) in message.field.iter().enumerate() {
        let path = [path, &[MEMBERS, i32::try_from(index).unwrap()]].concat();
        let choice = match field.oneof_index {
            Some(index) if !field.proto3_optional() => {
                format!("(one of `{}`) ", message.oneof_decl[usize::try_from(index).unwrap()].name())
            }
            _ => String::new(),
        };
        let kind = type_of(message, field);
        writeln!(out, "| `{}` | {kind} | {choice}{} |", field.name(), comment(comments, &path)).unwrap();
    }
}

fn enumeration(out: &mut String, kind: &EnumDescriptorProto, comments: &Comments, path: &[i32]) {
    writeln!(out, "\n### {}\n\n{}\n\n| value | |\n| --- | --- |", kind.name(), comment(comments, path)).unwrap();
    for (index, value) in kind.value.iter().enumerate() {
        let path = [path, &[MEMBERS, i32::try_from(index).unwrap()]].concat();
        writeln!(out, "| `{}` | {} |", value.name(), comment(comments, &path)).unwrap();
    }
}

fn document() -> String {
    let set = FileDescriptorSet::decode(weir_proto::v1::FILE_DESCRIPTOR_SET).unwrap();
    let mut out = include_str!("api_intro.md").to_owned();
    let files: Vec<&FileDescriptorProto> = set.file.iter().filter(|file| file.package() == "weir.v1").collect();
    for file in &files {
        let comments = comments(file);
        for (index, service) in file.service.iter().enumerate() {
            let path = [SERVICES, i32::try_from(index).unwrap()];
            writeln!(out, "\n## {}\n\n{}\n", service.name(), comment(&comments, &path)).unwrap();
            writeln!(out, "| method | request | response | |\n| --- | --- | --- | --- |").unwrap();
            for (index, method) in service.method.iter().enumerate() {
                let path = [&path[..], &[MEMBERS, i32::try_from(index).unwrap()]].concat();
                let stream = |streaming| if streaming { "stream " } else { "" };
                writeln!(
                    out,
                    "| `{}` | {}{} | {}{} | {} |",
                    method.name(),
                    stream(method.client_streaming()),
                    short(method.input_type()),
                    stream(method.server_streaming()),
                    short(method.output_type()),
                    comment(&comments, &path)
                )
                .unwrap();
            }
        }
    }
    writeln!(out, "\n## Messages").unwrap();
    for file in &files {
        let comments = comments(file);
        for (index, descriptor) in file.message_type.iter().enumerate() {
            message(&mut out, descriptor, &comments, &[MESSAGES, i32::try_from(index).unwrap()]);
        }
    }
    writeln!(out, "\n## Enums").unwrap();
    for file in &files {
        let comments = comments(file);
        for (index, descriptor) in file.enum_type.iter().enumerate() {
            enumeration(&mut out, descriptor, &comments, &[ENUMS, i32::try_from(index).unwrap()]);
        }
    }
    out
}

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/api.md");
    let fresh = document();
    assert!(fresh.contains("`bytes_per_second`") && fresh.contains("## IntentService"));
    if std::env::var_os("WEIR_UPDATE").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == fresh,
        "docs/api.md is out of date: WEIR_UPDATE=1 cargo test --workspace --release --test api_doc"
    );
}

#[test]
fn every_message_field_and_value_is_documented() {
    let set = FileDescriptorSet::decode(weir_proto::v1::FILE_DESCRIPTOR_SET).unwrap();
    for file in set.file.iter().filter(|file| file.package() == "weir.v1") {
        let comments = comments(file);
        for (index, message) in file.message_type.iter().enumerate() {
            let path = vec![MESSAGES, i32::try_from(index).unwrap()];
            assert!(comments.contains_key(&path), "{} has no comment", message.name());
            for (index, field) in message.field.iter().enumerate() {
                let path = [&path[..], &[MEMBERS, i32::try_from(index).unwrap()]].concat();
                assert!(comments.contains_key(&path), "{}.{} has no comment", message.name(), field.name());
            }
        }
        // Enums and services: each with its members (values, methods).
        let member = |path: &[i32], index: usize| [path, &[MEMBERS, i32::try_from(index).unwrap()]].concat();
        for (index, kind) in file.enum_type.iter().enumerate() {
            let path = vec![ENUMS, i32::try_from(index).unwrap()];
            assert!(comments.contains_key(&path), "{} has no comment", kind.name());
            for (index, value) in kind.value.iter().enumerate() {
                assert!(comments.contains_key(&member(&path, index)), "{} has no comment", value.name());
            }
        }
        for (index, service) in file.service.iter().enumerate() {
            let path = vec![SERVICES, i32::try_from(index).unwrap()];
            assert!(comments.contains_key(&path), "{} has no comment", service.name());
            for (index, method) in service.method.iter().enumerate() {
                assert!(comments.contains_key(&member(&path, index)), "{} has no comment", method.name());
            }
        }
    }
}
