//! Chooses the files of a repository that a model needs. Does not fetch them.

use super::HubError;

/// Files to read besides safetensors weights, if the repository has them.
pub(crate) const COMPANIONS: [&str; 8] = [
    "config.json",
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// The folder of named chat templates (`tool_use.jinja`, `rag.jinja`).
const TEMPLATES_FOLDER: &str = "additional_chat_templates/";
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Tag of a model without a format in other programs.
const LATEST: &str = "latest";

/// Files to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Files of a folder, plus the shards in the index among them.
    Folder(Vec<String>),
    /// A GGUF file, or all parts of a split one in order.
    Gguf(Vec<String>),
}

/// Chooses from the `files` of `repository`: the GGUF file with the given name or format (`Q4_K_M`), else
/// safetensors, else the only GGUF file.
pub(crate) fn choose(repository: &str, file: Option<&str>, files: &[String]) -> Result<Wanted, HubError> {
    let repository = repository.to_owned();
    let has = |name: &str| files.iter().any(|file| file == name);
    if let Some(file) = file.filter(|file| *file != LATEST) {
        if has(file) && file.ends_with(".gguf") {
            return Ok(Wanted::Gguf(parts(file, files)));
        }
        return match of_format(file, files).as_slice() {
            [] => Err(HubError::NoSuchFile { repository, file: file.to_owned(), files: first_parts(files) }),
            [only] => Ok(Wanted::Gguf(parts(only, files))),
            several => Err(HubError::ChooseFile { repository, files: several.to_vec() }),
        };
    }
    let weights = [INDEX_FILE, SINGLE_FILE].into_iter().find(|name| has(name));
    if let Some(weights) = weights {
        let companions = COMPANIONS.into_iter().filter(|name| has(name));
        let templates = files.iter().map(String::as_str).filter(|file| is_named_template(file));
        return Ok(Wanted::Folder(companions.chain(templates).chain([weights]).map(str::to_owned).collect()));
    }
    let ggufs = first_parts(files);
    match ggufs.as_slice() {
        [] => Err(HubError::NoWeights { repository }),
        [only] => Ok(Wanted::Gguf(parts(only, files))),
        _ => Err(HubError::ChooseFile { repository, files: ggufs }),
    }
}

/// The GGUF files with a format in their name (of a split one, the first part): those that end with the
/// format, as in `model-Q4_K_M.gguf`, else those that have it elsewhere, as in `Q4_K_M/model.gguf`.
fn of_format(format: &str, files: &[String]) -> Vec<String> {
    let format = format.to_ascii_lowercase();
    // Formats contain underscores themselves (`Q4_K_M`). An underscore before a match is a separator only
    // if the match is a whole format (`model_q4_0.gguf`).
    let is_whole =
        format.trim_start_matches(|c: char| c.is_ascii_lowercase()).starts_with(|c: char| c.is_ascii_digit())
            && format.starts_with(|c: char| c.is_ascii_lowercase());
    let is_end = |c: char| "-./".contains(c);
    let is_start = |c: char| is_end(c) || (is_whole && c == '_');
    let stem = |file: &str| {
        let stem = split_name(file).map_or(file.trim_end_matches(".gguf"), |(stem, _, _)| stem);
        stem.to_ascii_lowercase()
    };
    let ends = |file: &&String| {
        stem(file).strip_suffix(&format).is_some_and(|rest| rest.is_empty() || rest.ends_with(is_start))
    };
    let has = |file: &&String| {
        let stem = stem(file);
        stem.match_indices(&format).any(|(at, _)| {
            let rest = &stem[at + format.len()..];
            stem[..at].chars().next_back().is_none_or(is_start) && rest.chars().next().is_none_or(is_end)
        })
    };
    let ggufs = first_parts(files);
    let ending: Vec<String> = ggufs.iter().filter(ends).cloned().collect();
    if ending.is_empty() && !format.is_empty() { ggufs.iter().filter(has).cloned().collect() } else { ending }
}

fn is_named_template(file: &str) -> bool {
    file.strip_prefix(TEMPLATES_FOLDER).is_some_and(|name| !name.contains('/') && name.ends_with(".jinja"))
}

/// Whether `path` stays inside the folder it is joined to, on any system.
pub(crate) fn is_plain_path(path: &str) -> bool {
    !path.contains(['\\', ':', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// The GGUF files of models, sorted; of a split model only the first part.
fn first_parts(files: &[String]) -> Vec<String> {
    let is_first = |file: &String| split_name(file).is_none_or(|(_, number, _)| number == "00001");
    let is_model = |file: &String| {
        let name = file.rsplit('/').next().unwrap_or(file);
        // Image encoders and importance matrices are GGUF files too, but not models.
        name.ends_with(".gguf") && !name.starts_with("mmproj") && !name.contains("imatrix")
    };
    let mut ggufs: Vec<_> = files.iter().filter(|f| is_model(f) && is_first(f)).cloned().collect();
    ggufs.sort_unstable();
    ggufs
}

/// All parts of the split model of `file`, in order; for an unsplit model `file` alone.
fn parts(file: &str, files: &[String]) -> Vec<String> {
    let Some((stem, _, count)) = split_name(file) else { return vec![file.to_owned()] };
    let of_same = |file: &&String| split_name(file).is_some_and(|(s, _, c)| s == stem && c == count);
    let mut parts: Vec<_> = files.iter().filter(of_same).cloned().collect();
    parts.sort_unstable();
    parts
}

/// Stem, number and count of `stem-00001-of-00003.gguf`.
fn split_name(file: &str) -> Option<(&str, &str, &str)> {
    let rest = file.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(count)).then_some((stem, number, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| file.to_string()).collect()
    }

    #[test]
    fn only_the_files_that_a_model_needs_are_fetched() {
        let files = owned(&[
            ".gitattributes",
            "README.md",
            "additional_chat_templates/old/rag.jinja",
            "additional_chat_templates/notes.txt",
            "additional_chat_templates/tool_use.jinja",
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "onnx/model.onnx",
            "original/consolidated.safetensors",
        ]);
        let wanted = choose("o/n", None, &files).unwrap();
        let expected = [
            "config.json",
            "tokenizer.json",
            "additional_chat_templates/tool_use.jinja",
            "model.safetensors",
        ];
        assert_eq!(wanted, Wanted::Folder(owned(&expected)));
        assert!(matches!(
            choose("o/n", None, &owned(&["config.json", "pytorch_model.bin"])),
            Err(HubError::NoWeights { .. })
        ));
    }

    #[test]
    fn several_gguf_files_must_be_chosen_from() {
        let files = owned(&["b-Q8_0.gguf", "a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "README.md"]);
        let Err(HubError::ChooseFile { files: listed, .. }) = choose("o/n", None, &files) else {
            panic!("it chose by itself")
        };
        assert_eq!(listed, ["a-00001-of-00002.gguf", "b-Q8_0.gguf"]);
        let parts = Wanted::Gguf(owned(&["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]));
        assert_eq!(choose("o/n", Some("a-00001-of-00002.gguf"), &files).unwrap(), parts);
        assert_eq!(
            choose("o/n", Some("b-Q8_0.gguf"), &files).unwrap(),
            Wanted::Gguf(owned(&["b-Q8_0.gguf"]))
        );
        for missing in ["c.gguf", "README.md"] {
            assert!(matches!(choose("o/n", Some(missing), &files), Err(HubError::NoSuchFile { .. })));
        }
        assert_eq!(choose("o/n", None, &files[1..]).unwrap(), parts);
    }

    #[test]
    fn a_format_names_a_file() {
        let files = owned(&[
            "mmproj-model-Q4_K_M.gguf",
            "imatrix.gguf",
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m-UD-Q8_0.gguf",
            "m.IQ4_XS.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
            "Q2_K/weights.gguf",
            "m_q5_0.gguf",
        ]);
        for (format, expected) in [
            ("Q4_K_M", vec!["m-Q4_K_M.gguf"]),
            ("q4_k_s", vec!["m-Q4_K_S.gguf"]),
            ("Q8_0", vec!["m-UD-Q8_0.gguf"]),
            ("UD-Q8_0", vec!["m-UD-Q8_0.gguf"]),
            ("IQ4_XS", vec!["m.IQ4_XS.gguf"]),
            ("BF16", vec!["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"]),
            ("Q2_K", vec!["Q2_K/weights.gguf"]),
            ("Q5_0", vec!["m_q5_0.gguf"]),
        ] {
            assert_eq!(
                choose("o/n", Some(format), &files).unwrap(),
                Wanted::Gguf(owned(&expected)),
                "{format}"
            );
        }
        for format in ["Q4_K", "K_M", "4_K_M", "Q9"] {
            let refused = choose("o/n", Some(format), &files);
            assert!(matches!(refused, Err(HubError::NoSuchFile { .. })), "{format}: {refused:?}");
        }
        let two = owned(&["a-Q4_0.gguf", "b-Q4_0.gguf"]);
        assert!(matches!(choose("o/n", Some("Q4_0"), &two), Err(HubError::ChooseFile { .. })));
        assert!(matches!(choose("o/n", Some("latest"), &two), Err(HubError::ChooseFile { .. })));
        let one = owned(&["a-Q4_0.gguf", "mmproj-a.gguf"]);
        assert_eq!(choose("o/n", None, &one).unwrap(), Wanted::Gguf(owned(&["a-Q4_0.gguf"])));
    }

    #[test]
    fn paths_cannot_leave_the_folder() {
        assert!(is_plain_path("a.gguf") && is_plain_path("q4/a.gguf"));
        for bad in ["", "/a", "../a", "a/../b", "a//b", "a\\b", "c:a", "./a", "a/", "a\0"] {
            assert!(!is_plain_path(bad), "{bad:?}");
        }
    }
}
