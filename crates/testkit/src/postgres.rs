//! A PostgreSQL server of a test's own, from Debian's package: started in a new folder, killed and frozen as
//! the test requires.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::shared_files::note_skipped;

/// The longest wait of a failing test.
const PATIENCE: Duration = Duration::from_secs(60);
/// The user under which it runs where the test is root, as which it refuses to run.
const USER: &str = "postgres";

/// A running server. It is killed when dropped.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    port: u16,
    server: Child,
}

impl Postgres {
    /// Starts a server with its data in `folder`, which must be empty. `None`, with a message, if PostgreSQL
    /// is not installed.
    ///
    /// # Panics
    /// When it is installed and does not start.
    pub fn start(folder: &Path) -> Option<Self> {
        let Some(programs) = programs() else {
            note_skipped("PostgreSQL: /usr/lib/postgresql is absent (apt-get install postgresql)");
            return None;
        };
        // Another user must be able to reach and write it.
        for part in folder.ancestors().take_while(|part| part.starts_with(std::env::temp_dir())) {
            let mode = if part == folder { 0o777 } else { 0o755 };
            let _ = fs::metadata(part)
                .map(|found| found.permissions().mode() | mode)
                .and_then(|mode| fs::set_permissions(part, fs::Permissions::from_mode(mode)));
        }
        let data = folder.join("data");
        let made = unprivileged(&programs.join("initdb"))
            .args(["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(&data)
            .current_dir("/")
            .output()
            .expect("initdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let server = run(&programs, &data, port);
        let mut server = Self { programs, data, port, server };
        server.wait_until_ready();
        Some(server)
    }

    /// The URL of a new, empty database.
    ///
    /// # Panics
    /// When it cannot be created.
    pub fn new_database(&self, name: &str) -> String {
        let made = unprivileged(&self.programs.join("createdb"))
            .args(["--host=127.0.0.1", "--username=postgres", &format!("--port={}", self.port), name])
            .current_dir("/")
            .output()
            .expect("createdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }

    /// Kills the server and its workers at once, and starts it again.
    ///
    /// # Panics
    /// When it does not start again.
    pub fn kill_and_restart(&mut self) {
        self.stop();
        self.restart();
    }

    /// Kills the server and its workers at once.
    pub fn stop(&mut self) {
        self.signal("KILL");
        let _ = self.server.wait();
    }

    /// Starts a stopped server again.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.server = run(&self.programs, &self.data, self.port);
        self.wait_until_ready();
    }

    /// Stops all its processes: requests get no answer, and connections stay open.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets the processes of a frozen server run again.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Sends a signal to the server and all its workers, which have process groups of their own. Sends it
    /// twice, since the server may start a worker meanwhile.
    fn signal(&self, signal: &str) {
        for _ in 0..2 {
            let mut pids = vec![self.server.id()];
            pids.extend(children_of(self.server.id()));
            let pids = pids.iter().map(ToString::to_string);
            let _ = Command::new("kill").arg(format!("-{signal}")).args(pids).stderr(Stdio::null()).status();
        }
    }

    fn is_ready(&self) -> bool {
        let asked = Command::new(self.programs.join("pg_isready"))
            .args(["--quiet", "--host=127.0.0.1", &format!("--port={}", self.port)])
            .current_dir("/")
            .status();
        TcpStream::connect(("127.0.0.1", self.port)).is_ok() && asked.is_ok_and(|status| status.success())
    }

    fn wait_until_ready(&mut self) {
        let begun = Instant::now();
        while !self.is_ready() {
            assert!(begun.elapsed() < PATIENCE, "PostgreSQL does not start");
            // It gives up while a worker of the server that was killed still has its shared memory.
            if self.server.try_wait().is_ok_and(|ended| ended.is_some()) {
                self.server = run(&self.programs, &self.data, self.port);
            }
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.thaw();
        self.stop();
    }
}

/// The programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

fn run(programs: &Path, data: &Path, port: u16) -> Child {
    // A killed server leaves its lock file, and its workers may live a moment longer.
    let settings =
        ["fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=50"];
    unprivileged(&programs.join("postgres"))
        .arg("-D")
        .arg(data)
        .args(["-p", &port.to_string()])
        .args(settings.iter().flat_map(|setting| ["-c", setting]))
        .current_dir("/")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("postgres starts")
}

/// The command as a user that PostgreSQL accepts. `setpriv` becomes the program, so that its process id is
/// the program's.
fn unprivileged(program: &Path) -> Command {
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"])
        .arg(program);
    command
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // "PID (NAME) STATE PARENT …"; a name may have spaces and brackets.
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}
