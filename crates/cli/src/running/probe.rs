//! Drivers, asked in a process of their own: a driver that crashes is a sentence and not a dead server. Does
//! not know models.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use throng_gpu::{Adapter, AdapterDescription, AdapterKind, adapters, compute_check};

/// Time that a driver has to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A device as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundDevice {
    /// Number among the devices of this machine.
    pub number: usize,
    /// Interface of the driver: `vulkan` or `metal`.
    pub interface: String,
    /// Name of the device.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Kind of the device.
    pub kind: String,
    /// Whether the processor computes, by a driver in software.
    pub is_software: bool,
    /// Bytes of its memory; `None`: the driver does not say.
    pub memory_bytes: Option<u64>,
    /// Most bytes of a buffer that a kernel reads.
    pub max_binding_bytes: u64,
    /// Most bytes of memory that the threads of a workgroup share.
    pub max_shared_bytes: u32,
    /// The reason why Throng's kernels cannot run on it.
    pub lacks: Option<String>,
}

impl FoundDevice {
    fn new(number: usize, adapter: &Adapter) -> Self {
        let AdapterDescription {
            interface,
            name,
            driver,
            kind,
            memory_bytes,
            max_binding_bytes,
            max_shared_bytes,
            lacks,
        } = adapter.describe();
        Self {
            number,
            interface: interface.to_owned(),
            name,
            driver,
            kind: kind.to_string(),
            is_software: kind == AdapterKind::Software,
            memory_bytes,
            max_binding_bytes,
            max_shared_bytes,
            lacks: lacks.map(str::to_owned),
        }
    }
}

/// The work of the process: prints the devices as JSON, or computes on one of them.
///
/// # Errors
/// When the device does not work.
pub fn answer(number: Option<usize>) -> Result<String> {
    let Some(number) = number else {
        let found: Vec<_> =
            adapters(false).iter().enumerate().map(|(i, adapter)| FoundDevice::new(i, adapter)).collect();
        return Ok(serde_json::to_string(&found)?);
    };
    compute_check(&Adapter::numbered(number, false)?)?;
    Ok("ok".to_owned())
}

/// The devices of this machine.
///
/// # Errors
/// When a driver crashes or does not answer.
pub fn find() -> Result<Vec<FoundDevice>> {
    let answer = ask(None).context("the drivers of GPUs cannot be asked for their devices")?;
    serde_json::from_str(answer.trim()).context("the drivers of GPUs gave no list of devices")
}

/// Computes on a device, in a process of its own.
///
/// # Errors
/// When the driver crashes or computes wrongly, or the device is lost.
pub fn check(device: &FoundDevice) -> Result<()> {
    if let Some(lacking) = &device.lacks {
        bail!("{} lacks {lacking}", device.name);
    }
    ask(Some(device.number)).map(drop).with_context(|| {
        let FoundDevice { number, name, driver, .. } = device;
        format!("device {number}, {name} with the driver {driver}, does not work")
    })
}

fn ask(number: Option<usize>) -> Result<String> {
    let program = std::env::current_exe().context("this program is not found")?;
    let mut command = Command::new(program);
    command.args(["devices", "--probe"]).args(number.map(|number| number.to_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("a process for the driver cannot be started")?;
    let [out, err] = [
        child.stdout.take().map(|pipe| reader(Box::new(pipe))),
        child.stderr.take().map(|pipe| reader(Box::new(pipe))),
    ];
    let status = wait(&mut child)?;
    let read = |reader: Option<std::thread::JoinHandle<String>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    let (out, err) = (read(out), read(err));
    if status.success() {
        return Ok(out);
    }
    // Drivers write to standard error, too; this program's words are the last ones, if it could say any.
    let said = err.lines().rev().find_map(|line| line.strip_prefix("error: "));
    match said.filter(|_| status.code() == Some(1)) {
        Some(reason) => bail!("{reason}"),
        None => bail!("the driver crashed the process that asked it ({})", describe(status)),
    }
}

fn reader(mut pipe: Box<dyn Read + Send>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("the process of the driver cannot be waited for")? {
            return Ok(status);
        }
        if started.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the driver did not answer within {} seconds", TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(unix)]
fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"))
}

#[cfg(not(unix))]
fn describe(status: ExitStatus) -> String {
    status.to_string()
}
