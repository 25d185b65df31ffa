//! The sandboxes of programs that speak MCP: none of them has a network. Each is tried when the gateway
//! starts.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::config::ServerConfig;
use crate::error::ToolsError;

/// Time within which a sandbox must start an empty program.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// Processes in a container.
const MAX_PROCESSES: &str = "256";
/// Maximum memory of a container.
const MAX_MEMORY: &str = "1g";
/// Folders of the system that a program needs to run.
const SYSTEM_FOLDERS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl",
];

/// A sandbox for the command of a tool server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sandbox {
    /// The program runs as the server does.
    None,
    /// Bubblewrap: no network, and no files but the system's and the listed ones.
    Bubblewrap,
    /// Linux namespaces by `unshare`: no network, no other processes; all files of the server.
    Unshare,
    /// A container of Docker or Podman, without network.
    Container {
        /// `docker` or `podman`.
        program: &'static str,
        /// The image, which must exist.
        image: String,
    },
}

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: String,
    pub args: Vec<String>,
}

impl Sandbox {
    /// Parses the name of a sandbox.
    ///
    /// # Errors
    /// Description of the fault.
    pub fn parse(name: &str) -> Result<Self, String> {
        let container = |program, image: &str| match image {
            "" => Err(format!("'{name}' names no image")),
            image if image.starts_with('-') => Err(format!("'{image}' is no image")),
            image => Ok(Self::Container { program, image: image.to_owned() }),
        };
        match name.split_once(':') {
            Some(("docker", image)) => container("docker", image),
            Some(("podman", image)) => container("podman", image),
            _ => match name {
                "none" => Ok(Self::None),
                "bwrap" => Ok(Self::Bubblewrap),
                "unshare" => Ok(Self::Unshare),
                _ => Err(format!("'{name}' is none of bwrap, unshare, docker:IMAGE, podman:IMAGE, none")),
            },
        }
    }

    /// The program that runs `server`'s command in the sandbox.
    pub fn wrap(&self, server: &ServerConfig) -> Program {
        let command = server.command.clone().unwrap_or_default();
        let mut args: Vec<String> = Vec::new();
        let path = match self {
            Self::None => return Program { path: command, args: server.args.clone() },
            Self::Bubblewrap => {
                args.extend(bubblewrap(&server.readable, &server.writable));
                "bwrap"
            }
            Self::Unshare => {
                args.extend(UNSHARE.iter().map(|&arg| arg.to_owned()));
                "unshare"
            }
            Self::Container { program, image } => {
                args.extend(container(server));
                args.push(image.clone());
                program
            }
        };
        args.push(command);
        args.extend(server.args.iter().cloned());
        Program { path: path.to_owned(), args }
    }

    /// Checks that programs start in the sandbox.
    ///
    /// # Errors
    /// [`ToolsError::Sandbox`], which names the server.
    pub fn check(&self, name: &str, server: &ServerConfig) -> Result<(), ToolsError> {
        let probe = match self {
            Self::None => return Ok(()),
            Self::Container { program, image } => Program {
                path: (*program).to_owned(),
                args: ["image", "inspect", image].map(str::to_owned).to_vec(),
            },
            Self::Bubblewrap | Self::Unshare => {
                let empty = ServerConfig { command: Some("true".to_owned()), ..ServerConfig::default() };
                self.wrap(&ServerConfig {
                    readable: server.readable.clone(),
                    writable: server.writable.clone(),
                    ..empty
                })
            }
        };
        run_probe(&probe).map_err(|fault| ToolsError::Sandbox {
            server: server.name.clone(),
            sandbox: name.to_owned(),
            fault,
        })
    }
}

/// Arguments of `unshare`: new namespaces of users, network, processes, IPC and host name.
const UNSHARE: &[&str] = &[
    "--user",
    "--map-root-user",
    "--net",
    "--pid",
    "--ipc",
    "--uts",
    "--mount-proc",
    "--fork",
    "--kill-child",
    "--",
];

fn bubblewrap(readable: &[PathBuf], writable: &[PathBuf]) -> Vec<String> {
    let plain = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--dev", "/dev"];
    let mut args: Vec<String> = plain.map(str::to_owned).to_vec();
    args.extend(["--proc", "/proc", "--tmpfs", "/tmp"].map(str::to_owned));
    let system = SYSTEM_FOLDERS.iter().map(|&folder| folder.to_owned());
    let shown = readable.iter().map(|path| path.display().to_string());
    for folder in system.chain(shown) {
        args.extend(["--ro-bind-try".to_owned(), folder.clone(), folder]);
    }
    for folder in writable.iter().map(|path| path.display().to_string()) {
        args.extend(["--bind".to_owned(), folder.clone(), folder]);
    }
    args.push("--".to_owned());
    args
}

fn container(server: &ServerConfig) -> Vec<String> {
    let plain = [
        "run",
        "--rm",
        "--interactive",
        "--pull",
        "never",
        "--network",
        "none",
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--pids-limit",
        MAX_PROCESSES,
        "--memory",
        MAX_MEMORY,
    ];
    let mut args: Vec<String> = plain.map(str::to_owned).to_vec();
    // The values stay in the environment, where other users of the machine do not see them.
    for name in server.env.keys() {
        args.extend(["--env".to_owned(), name.clone()]);
    }
    for (folders, mode) in [(&server.readable, ":ro"), (&server.writable, "")] {
        for folder in folders.iter().map(|path| path.display().to_string()) {
            args.extend(["--volume".to_owned(), format!("{folder}:{folder}{mode}")]);
        }
    }
    args
}

/// Runs an empty program in a sandbox.
fn run_probe(probe: &Program) -> Result<(), String> {
    let child = Command::new(&probe.path)
        .args(&probe.args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("{}: {error}", probe.path))?;
    let deadline = Instant::now() + PROBE_TIMEOUT;
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{} did not answer within {} s", probe.path, PROBE_TIMEOUT.as_secs()));
        }
        std::thread::sleep(PROBE_INTERVAL);
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    let line = told.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    Err(line.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use throng_core::secret::Secret;

    use super::*;

    fn server() -> ServerConfig {
        ServerConfig {
            name: "code".to_owned(),
            command: Some("python3".to_owned()),
            args: vec!["-m".to_owned(), "server".to_owned()],
            env: [("TOKEN".to_owned(), Secret::new("secret"))].into(),
            readable: vec!["/srv/data".into()],
            ..ServerConfig::default()
        }
    }

    #[test]
    fn names_are_read() {
        let image = "python:3.13".to_owned();
        assert_eq!(Sandbox::parse("docker:python:3.13"), Ok(Sandbox::Container { program: "docker", image }));
        assert_eq!(Sandbox::parse("bwrap"), Ok(Sandbox::Bubblewrap));
        for bad in ["", "docker", "docker:", "docker:--privileged", "jail"] {
            assert!(Sandbox::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_sandbox_has_a_network_or_shows_a_secret() {
        for (name, word) in
            [("bwrap", "--unshare-all"), ("unshare", "--net"), ("podman:python", "--network none")]
        {
            let program = Sandbox::parse(name).expect("a sandbox").wrap(&server());
            let line = program.args.join(" ");
            assert!(line.contains(word), "{line}");
            assert!(line.ends_with("python3 -m server") && !line.contains("secret"), "{line}");
        }
    }

    #[test]
    fn a_sandbox_that_cannot_be_had_is_refused_by_name() {
        let sandbox = Sandbox::Container { program: "docker", image: "no/such-image".to_owned() };
        let error = sandbox.check("docker:no/such-image", &server()).expect_err("no such image").to_string();
        assert!(
            error.starts_with("the tool server 'code' is refused: its sandbox 'docker:no/such-image'"),
            "{error}"
        );
    }
}
