//! Chooses the files of a repository that a model needs. Does not fetch them.

use super::HubError;

/// Files to read besides safetensors weights, if the repository has them.
pub(crate) const COMPANIONS: [&str; 16] = [
    "config.json",
    "hf_quant_config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    MODULES_FILE,
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.model",
];
/// Vocabulary files that a `tokenizer.json` makes needless, at the end of [`COMPANIONS`].
const N_ORIGINAL_VOCABULARIES: usize = 3;
/// List of the modules of an encoder, as sentence-transformers saves it.
pub(crate) const MODULES_FILE: &str = "modules.json";
/// Files of a module's folder.
const MODULE_FILES: [&str; 2] = ["config.json", SINGLE_FILE];
/// Maximum number of modules whose folders are fetched.
const MAX_MODULES: usize = 16;
/// The folder of named chat templates (`tool_use.jinja`, `rag.jinja`).
const TEMPLATES_FOLDER: &str = "additional_chat_templates/";
/// Files of an adapter, as PEFT saves them.
const ADAPTER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Format of the GGUF file that is taken of several if none is named, as llama.cpp and Ollama take it.
const USUAL_FORMAT: &str = "Q4_K_M";
/// Tag of a model without a format in other programs.
const LATEST: &str = "latest";

/// Files to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Files of a folder, plus the shards in the index among them.
    Folder(Vec<String>),
    /// A GGUF file, or all parts of a split one in order; then the encoder of its images, if there is one.
    Gguf(Vec<String>),
}

/// Chooses from the `files` of `repository`: the GGUF file with the given name or format (`Q4_K_M`), else
/// safetensors, else the only GGUF file, else that in [`USUAL_FORMAT`].
pub(crate) fn choose(repository: &str, file: Option<&str>, files: &[String]) -> Result<Wanted, HubError> {
    let repository = repository.to_owned();
    let has = |name: &str| files.iter().any(|file| file == name);
    if let Some(file) = file.filter(|file| *file != LATEST) {
        if has(file) && file.ends_with(".gguf") {
            return Ok(Wanted::Gguf(with_encoder(file, files)));
        }
        return match of_format(file, files).as_slice() {
            [] => Err(HubError::NoSuchFile { repository, file: file.to_owned(), files: first_parts(files) }),
            [only] => Ok(Wanted::Gguf(with_encoder(only, files))),
            several => Err(HubError::ChooseFile { repository, files: several.to_vec() }),
        };
    }
    let weights = [INDEX_FILE, SINGLE_FILE].into_iter().find(|name| has(name));
    if let Some(weights) = weights {
        let n_needless = if has("tokenizer.json") { N_ORIGINAL_VOCABULARIES } else { 0 };
        let companions = COMPANIONS[..COMPANIONS.len() - n_needless].iter().copied().filter(|name| has(name));
        let templates = files.iter().map(String::as_str).filter(|file| is_named_template(file));
        return Ok(Wanted::Folder(companions.chain(templates).chain([weights]).map(str::to_owned).collect()));
    }
    let ggufs = first_parts(files);
    match ggufs.as_slice() {
        [] if ADAPTER.into_iter().all(has) => Ok(Wanted::Folder(ADAPTER.map(str::to_owned).to_vec())),
        [] => Err(HubError::NoWeights { repository }),
        [only] => Ok(Wanted::Gguf(with_encoder(only, files))),
        several => match of_format(USUAL_FORMAT, files).as_slice() {
            [usual] => {
                let n = several.len();
                tracing::info!("{usual} is taken of {n} GGUF files; {repository}:FORMAT names another one");
                Ok(Wanted::Gguf(with_encoder(usual, files)))
            }
            _ => Err(HubError::ChooseFile { repository, files: ggufs }),
        },
    }
}

/// Paths of the files that the modules in a `modules.json` may have in folders of their own. A list that
/// cannot be read has none: loading the model reports it.
pub(crate) fn module_files(modules: &[u8]) -> Vec<String> {
    let modules: Vec<serde_json::Value> = serde_json::from_slice(modules).unwrap_or_default();
    let paths = modules.iter().take(MAX_MODULES).filter_map(|module| module.get("path")?.as_str());
    let folders = paths.map(|path| path.trim_end_matches('/')).filter(|path| is_plain_path(path));
    folders.flat_map(|folder| MODULE_FILES.map(|file| format!("{folder}/{file}"))).collect()
}

/// The parts of a model, and the encoder of images in its folder.
fn with_encoder(file: &str, files: &[String]) -> Vec<String> {
    let mut wanted = parts(file, files);
    wanted.extend(encoder_beside(file, files));
    wanted
}

/// The encoder of images (`mmproj`) in the folder of a model: of several the one of 16 bits, which takes half
/// the bytes of F32 without a loss that can be seen.
fn encoder_beside(model: &str, files: &[String]) -> Option<String> {
    let split = |file: &str| {
        file.rsplit_once('/').map_or((String::new(), file.to_lowercase()), |(folder, name)| {
            (folder.to_owned(), name.to_lowercase())
        })
    };
    let (model_folder, _) = split(model);
    let rank = |file: &&String| {
        let (_, name) = split(file);
        ["bf16", "f16", "q8_0"].iter().position(|format| name.contains(format)).unwrap_or(3)
    };
    let is_encoder = |file: &&String| {
        let (folder, name) = split(file);
        folder == model_folder && name.ends_with(".gguf") && name.contains("mmproj")
    };
    let mut encoders: Vec<&String> = files.iter().filter(is_encoder).collect();
    encoders.sort_unstable();
    encoders.into_iter().min_by_key(rank).cloned()
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
        name.ends_with(".gguf") && !name.to_lowercase().contains("mmproj") && !name.contains("imatrix")
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
            "tokenizer.model",
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
        let original = ["config.json", "tiktoken.model", "model.safetensors"];
        assert_eq!(choose("o/n", None, &owned(&original)).unwrap(), Wanted::Folder(owned(&original)));
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
    fn an_adapter_has_two_files() {
        let files =
            owned(&["README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json"]);
        assert_eq!(choose("o/n", None, &files).unwrap(), Wanted::Folder(owned(&ADAPTER)));
        assert!(matches!(choose("o/n", None, &files[..2]), Err(HubError::NoWeights { .. })));
    }

    #[test]
    fn the_usual_format_needs_no_name() {
        let files = owned(&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf"]);
        for tag in [None, Some("latest")] {
            assert_eq!(choose("o/n", tag, &files).unwrap(), Wanted::Gguf(owned(&["m-Q4_K_M.gguf"])));
        }
        let two = owned(&["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"]);
        assert!(matches!(choose("o/n", None, &two), Err(HubError::ChooseFile { .. })));
    }

    #[test]
    fn a_format_names_a_file() {
        let files = owned(&[
            "encoder/mmproj-model-Q4_K_M.gguf",
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
        assert_eq!(
            choose("o/n", None, &one).unwrap(),
            Wanted::Gguf(owned(&["a-Q4_0.gguf", "mmproj-a.gguf"]))
        );
    }

    #[test]
    fn the_encoder_of_images_comes_with_a_gguf_model() {
        let of = |model: &str, files: &[&str]| choose("o/n", Some(model), &owned(files)).unwrap();
        let both = |encoder: &str| Wanted::Gguf(owned(&["m-Q4_0.gguf", encoder]));
        let several = ["m-Q4_0.gguf", "mmproj-F32.gguf", "mmproj-Q8_0.gguf", "mmproj-F16.gguf"];
        assert_eq!(of("Q4_0", &several), both("mmproj-F16.gguf"));
        assert_eq!(of("Q4_0", &several[..3]), both("mmproj-Q8_0.gguf"));
        assert_eq!(of("m-Q4_0.gguf", &several[..2]), both("mmproj-F32.gguf"));
        assert_eq!(of("Q4_0", &["m-Q4_0.gguf", "m.mmproj-BF16.gguf"]), both("m.mmproj-BF16.gguf"));
        let split = ["q/m-Q4_0-00001-of-00002.gguf", "q/m-Q4_0-00002-of-00002.gguf", "q/mmproj.gguf"];
        assert_eq!(of("Q4_0", &split), Wanted::Gguf(owned(&split)));
        let elsewhere = ["m-Q4_0.gguf", "other/mmproj-F16.gguf"];
        assert_eq!(of("Q4_0", &elsewhere), Wanted::Gguf(owned(&["m-Q4_0.gguf"])));
    }

    #[test]
    fn modules_have_files_of_their_own() {
        let json = br#"[{"idx": 0, "path": "", "type": "a.Transformer"}, {"path": "1_Pooling/"}, {"path": "2_Dense"},
            {"path": "../x"}, {"path": 3}, {}]"#;
        let expected = ["1_Pooling/config.json", "1_Pooling/model.safetensors", "2_Dense/config.json"];
        assert_eq!(module_files(json)[..3], owned(&expected));
        assert_eq!(module_files(json).len(), 4);
        assert_eq!(module_files(b"{"), owned(&[]));
    }

    #[test]
    fn paths_cannot_leave_the_folder() {
        assert!(is_plain_path("a.gguf") && is_plain_path("q4/a.gguf"));
        for bad in ["", "/a", "../a", "a/../b", "a//b", "a\\b", "c:a", "./a", "a/", "a\0"] {
            assert!(!is_plain_path(bad), "{bad:?}");
        }
    }
}
