//! How long an uncontended lock and unlock takes: a held handle on shared memory, against `flock` on a file.

use lockwright::Client;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const CYCLES: u32 = 200_000;
    let path = format!("/dev/shm/lockwright-uncontended-{}", std::process::id());
    let client = Client::open(&format!("shm:{path}")).wait()?;
    let (mutex, range) = (client.mutex("a")?, client.range_lock("a")?);
    let file = std::fs::File::create(format!("{path}.flock"))?;
    let time = |what: &str, cycle: &mut dyn FnMut() -> Result<(), Box<dyn std::error::Error>>| {
        let began = Instant::now();
        for _ in 0..CYCLES {
            cycle()?;
        }
        println!("{what:8} {:6} ns", began.elapsed().as_nanos() / u128::from(CYCLES));
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    time("mutex", &mut || Ok(mutex.lock().wait()?.unlock().wait()?))?;
    time("range", &mut || Ok(range.write(0..64).wait()?.unlock().wait()?))?;
    time("flock", &mut || {
        file.lock()?;
        Ok(file.unlock()?)
    })?;
    std::fs::remove_file(&path)?;
    std::fs::remove_file(format!("{path}.flock"))?;
    Ok(())
}
