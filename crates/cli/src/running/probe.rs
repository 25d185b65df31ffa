//! Drivers, probed in a process of their own: a driver that crashes is an error and does not end the server.
//! Results are kept for the next start. Does not know models.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use throng_gpu::{Adapter, adapters, compute_check};

pub use super::found_device::FoundDevice;
use super::probe_cache::{ProbeCache, Verdict};
use crate::args::DeviceChoice;

/// Time that a driver has to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The work of the process: prints the devices as JSON, or computes on one of them.
///
/// # Errors
/// When the device does not work.
pub fn answer(number: Option<usize>) -> Result<String> {
    let Some(number) = number else {
        let found: Vec<_> =
            adapters(false).iter().enumerate().map(|(i, a)| FoundDevice::new(i, a.describe())).collect();
        return Ok(serde_json::to_string(&found)?);
    };
    compute_check(&Adapter::numbered(number, false)?)?;
    Ok("ok".to_owned())
}

/// Removes the results of earlier probes, so that drivers are tried again.
pub fn forget() {
    ProbeCache::of_this_machine().forget();
}

/// The devices of this machine, as found by this or an earlier start.
///
/// # Errors
/// When a driver crashes or does not answer.
pub fn find() -> Result<Vec<FoundDevice>> {
    let cache = ProbeCache::of_this_machine();
    let found = match cache.devices() {
        Some(kept) => kept.map_err(remembered),
        None => {
            let read = |answer: String| {
                let list: serde_json::Result<Vec<FoundDevice>> = serde_json::from_str(answer.trim());
                list.map_err(|error| format!("the drivers gave no list of devices: {error}"))
            };
            let found = ask(None)?.and_then(read);
            cache.keep_devices(found.clone());
            found
        }
    };
    found.map_err(anyhow::Error::msg).context("the drivers of GPUs cannot be asked for their devices")
}

/// The device that is chosen by number or by interface; `None`: the processor, or the choice is `auto`.
///
/// # Errors
/// When there is no such device.
pub fn chosen(device: DeviceChoice) -> Result<Option<FoundDevice>> {
    match device {
        DeviceChoice::Cpu | DeviceChoice::Auto => Ok(None),
        DeviceChoice::Vulkan(number) => numbered(number).map(Some),
        DeviceChoice::Metal => metal().map(Some),
    }
}

fn numbered(number: usize) -> Result<FoundDevice> {
    let mut found = find()?;
    match found.len() {
        0 => bail!(
            "--device vulkan:{number}: no driver offers a GPU; install the GPU's driver for Vulkan and the Vulkan loader \
             (Debian: libvulkan1), or take --device cpu"
        ),
        n if number >= n => {
            bail!(
                "--device vulkan:{number}: devices are numbered from 0 to {}; throng devices lists them",
                n - 1
            )
        }
        _ => Ok(found.swap_remove(number)),
    }
}

fn metal() -> Result<FoundDevice> {
    let found = find()?;
    let metal = found.into_iter().find(|device| device.interface == "metal");
    metal.context("--device metal: this machine has no such device; throng devices lists those it has")
}

/// Computes on a device, in a process of its own, unless an earlier start has.
///
/// # Errors
/// When the driver crashes or computes wrongly, or the device is lost.
pub fn check(device: &FoundDevice) -> Result<()> {
    if let Some(lacking) = &device.lacks {
        bail!("{} lacks {lacking}", device.name);
    }
    let cache = ProbeCache::of_this_machine();
    let works = match cache.works(device) {
        Some(kept) => kept.map_err(remembered),
        None => {
            let works = ask(Some(device.number))?.map(drop);
            cache.keep_works(device.number, works.clone());
            works
        }
    };
    works.map_err(anyhow::Error::msg).with_context(|| {
        let FoundDevice { number, name, driver, .. } = device;
        format!("device {number}, {name} with the driver {driver}, does not work")
    })
}

fn remembered(fault: String) -> String {
    format!("{fault}; found by an earlier start: throng devices --probe-again tries again")
}

/// The answer of a process that asks the drivers, or the fault of the driver.
fn ask(number: Option<usize>) -> Result<Verdict<String>> {
    let program = std::env::current_exe().context("this program is not found")?;
    let mut command = Command::new(program);
    command.args(["devices", "--probe"]).args(number.map(|number| number.to_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("a process for the driver cannot be started")?;
    let [out, err] = [
        child.stdout.take().map(|pipe| reader(Box::new(pipe))),
        child.stderr.take().map(|pipe| reader(Box::new(pipe))),
    ];
    let Some(status) = wait(&mut child)? else {
        return Ok(Err(format!("the driver did not answer within {} seconds", TIMEOUT.as_secs())));
    };
    let read = |reader: Option<std::thread::JoinHandle<String>>| {
        reader.and_then(|reader| reader.join().ok()).unwrap_or_default()
    };
    let (out, err) = (read(out), read(err));
    if status.success() {
        return Ok(Ok(out));
    }
    // Drivers write to standard error, too; this program's words are the last ones, if it could say any.
    let said = err.lines().rev().find_map(|line| line.strip_prefix("error: "));
    Ok(Err(match said.filter(|_| status.code() == Some(1)) {
        Some(reason) => reason.to_owned(),
        None => format!("the driver crashed the process that asked it ({})", describe(status)),
    }))
}

fn reader(mut pipe: Box<dyn Read + Send>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits for the process; `None` if it took too long and was ended.
fn wait(child: &mut Child) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("the process of the driver cannot be waited for")? {
            return Ok(Some(status));
        }
        if started.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
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
