//! The objects at a URL with their sizes and versions. Lists a bucket; a web server cannot be listed, so each
//! file that a model may have is requested. Does not choose files.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::ClientConfigKey;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, ObjectStoreScheme};
use reqwest::Url;

use super::redirects::BoundedRedirects;
use super::sums::SUMS_FILE;
use super::{ModelUrl, ObjectsError, causes};
use crate::{COMPANIONS, INDEX_FILE, SINGLE_FILE, is_plain_path};

/// Maximum number of objects below a URL.
const MAX_OBJECTS: usize = 10_000;
/// Number of parallel HEAD requests to a web server.
const PROBES_AT_A_TIME: usize = 4;

/// A folder or file in an object store.
#[derive(Debug)]
pub(super) struct Place {
    pub store: Box<dyn ObjectStore>,
    /// The folder, or the file's folder.
    pub folder: Path,
    /// The file, if the URL is that of one.
    pub file: Option<String>,
    is_listed: bool,
}

/// Identity of one version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    pub size: u64,
    /// The entity tag, or the time of the last change if there is none.
    pub tag: String,
    /// The entity tag for conditional requests.
    pub e_tag: Option<String>,
}

impl From<&object_store::ObjectMeta> for Version {
    fn from(meta: &object_store::ObjectMeta) -> Self {
        let tag = meta.e_tag.clone().unwrap_or_else(|| meta.last_modified.timestamp_millis().to_string());
        Self { size: meta.size, tag, e_tag: meta.e_tag.clone() }
    }
}

/// Configures a builder with the environment's settings and a client that bounds redirects.
macro_rules! configured {
    ($builder:ty, $url:expr, $options:expr) => {{
        let builder =
            <$builder>::new().with_url($url).with_http_connector(BoundedRedirects { is_signed: true });
        let add = |builder: $builder, (key, value): (String, String)| match key.parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        };
        Box::new($options.into_iter().fold(builder, add).build()?)
    }};
}

/// Opens the store of a URL. Credentials and settings of buckets come from the environment (`AWS_*`,
/// `GOOGLE_*`, `AZURE_*`).
fn open(scheme: &ObjectStoreScheme, url: &Url) -> Result<Box<dyn ObjectStore>, Error> {
    let is_web = url.scheme().starts_with("http");
    let options = if is_web { Vec::new() } else { variables() };
    Ok(match scheme {
        ObjectStoreScheme::AmazonS3 => configured!(AmazonS3Builder, url.as_str(), options),
        ObjectStoreScheme::GoogleCloudStorage => {
            configured!(GoogleCloudStorageBuilder, url.as_str(), options)
        }
        ObjectStoreScheme::MicrosoftAzure => configured!(MicrosoftAzureBuilder, url.as_str(), options),
        ObjectStoreScheme::Http => Box::new(
            HttpBuilder::new()
                .with_url(url.origin().ascii_serialization())
                .with_config(ClientConfigKey::AllowHttp, (url.scheme() == "http").to_string())
                .with_http_connector(BoundedRedirects { is_signed: false })
                .build()?,
        ),
        other => {
            let source = format!("{other:?} is no store of models").into();
            return Err(Error::Generic { store: "URL", source });
        }
    })
}

/// Environment variables that configure access to buckets.
fn variables() -> Vec<(String, String)> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?.to_ascii_lowercase();
        let is_meant = ["aws_", "google_", "azure_"].iter().any(|prefix| name.starts_with(prefix));
        Some((name, value.into_string().ok()?)).filter(|_| is_meant)
    });
    variables.collect()
}

impl Place {
    /// Parses a URL and opens its store, with settings from the environment (`AWS_*`, `GOOGLE_*`,
    /// `AZURE_*`).
    pub fn of(url: &ModelUrl) -> Result<Self, ObjectsError> {
        let parsed: Url = url
            .url
            .parse()
            .map_err(|_| ObjectsError::Url { url: url.url.clone(), reason: "it cannot be read as a URL" })?;
        let opened = ObjectStoreScheme::parse(&parsed)
            .map_err(Error::from)
            .and_then(|(scheme, path)| Ok((open(&scheme, &parsed)?, path)));
        let (store, path) = opened.map_err(|error| ObjectsError::Download {
            url: url.url.clone(),
            file: "anything".to_owned(),
            reason: causes(&error),
        })?;
        let is_file = url.url.ends_with(".gguf");
        let (folder, file) = match path.as_ref().rsplit_once('/') {
            _ if !is_file => (path, None),
            Some((folder, file)) => (Path::from(folder), Some(file.to_owned())),
            None => (Path::default(), Some(path.to_string())),
        };
        // Web addresses of known object stores can be listed too.
        let is_listed = !store.to_string().starts_with("HttpStore");
        Ok(Self { store, folder, file, is_listed })
    }

    /// The path of an object in the folder.
    pub fn path(&self, name: &str) -> Path {
        let parts = self.folder.parts().map(|part| part.as_ref().to_owned());
        Path::from_iter(parts.chain(name.split('/').map(str::to_owned)))
    }

    /// The existing objects by their names in the folder.
    pub async fn objects(&self) -> Result<BTreeMap<String, Version>, Error> {
        if self.is_listed {
            return self.listed().await;
        }
        let names: Vec<String> = match &self.file {
            Some(file) => parts_of(file).into_iter().chain([SUMS_FILE.to_owned()]).collect(),
            None => COMPANIONS
                .iter()
                .chain(&[SINGLE_FILE, INDEX_FILE, SUMS_FILE])
                .map(|name| (*name).to_owned())
                .collect(),
        };
        self.probed(names).await
    }

    async fn listed(&self) -> Result<BTreeMap<String, Version>, Error> {
        let prefix = Some(&self.folder).filter(|folder| !folder.as_ref().is_empty());
        let found = self.store.list(prefix).take(MAX_OBJECTS + 1).try_collect::<Vec<_>>().await?;
        if found.len() > MAX_OBJECTS {
            let source = format!("there are more than {MAX_OBJECTS} objects").into();
            return Err(Error::Generic { store: "list", source });
        }
        let name = |meta: &object_store::ObjectMeta| {
            let rest = meta.location.prefix_match(&self.folder)?;
            let name = rest.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            Some(name).filter(|name| is_plain_path(name))
        };
        Ok(found.iter().filter_map(|meta| Some((name(meta)?, Version::from(meta)))).collect())
    }

    /// Asks the store which of these objects exist.
    pub async fn probed(&self, names: Vec<String>) -> Result<BTreeMap<String, Version>, Error> {
        let probe = |name: String| async move {
            match self.store.head(&self.path(&name)).await {
                Ok(meta) => Ok(Some((name, Version::from(&meta)))),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let probes = futures_util::stream::iter(names).map(probe).buffer_unordered(PROBES_AT_A_TIME);
        Ok(probes.try_collect::<Vec<_>>().await?.into_iter().flatten().collect())
    }
}

/// All parts of a split model, given its first part; another .gguf file alone.
fn parts_of(file: &str) -> Vec<String> {
    let count = file.strip_suffix(".gguf").and_then(|stem| stem.split_once("-00001-of-"));
    match count.and_then(|(stem, count)| Some((stem, count, count.parse::<u32>().ok()?))) {
        Some((stem, count, n)) if n <= 1000 => {
            (1..=n).map(|i| format!("{stem}-{i:05}-of-{count}.gguf")).collect()
        }
        _ => vec![file.to_owned()],
    }
}
