use std::process::Command;

use super::*;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn steps(all: u64) -> State {
    State::new(Extent::Steps {
        all,
        ended: 0,
        is_running: false,
    })
}

/// A writer that is also a terminal, and whose output the test reads.
#[derive(Debug, Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(locked(&self.0).clone()).expect("the output is valid UTF-8")
    }

    fn add(&self, text: &str) -> io::Result<()> {
        locked(&self.0).extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        locked(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl indicatif::TermLike for Captured {
    fn width(&self) -> u16 {
        60
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.add(&"<up>".repeat(lines))
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.add(&"<down>".repeat(lines))
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("<clear>")
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_time_left_follows_from_the_steps_that_have_ended() {
    let mut state = steps(4);
    state.begin("a".into(), seconds(0));
    assert_eq!(state.left(seconds(50)), None, "no step has ended");
    state.begin("b".into(), seconds(100));
    assert_eq!(state.left(seconds(100)), Some(seconds(300)));
    assert_eq!(state.left(seconds(150)), Some(seconds(250)));
    state.begin("c".into(), seconds(240));
    assert_eq!(state.left(seconds(240)), Some(seconds(240)));
}

#[test]
fn a_step_that_takes_long_makes_the_estimate_of_the_next_steps_longer() {
    let mut state = steps(4);
    state.begin("a".into(), seconds(0));
    state.begin("b".into(), seconds(100));
    // The first two steps take at least 600 s together, so the estimate for the last two steps is 600 s.
    assert_eq!(state.left(seconds(600)), Some(seconds(600)));
}

#[test]
fn the_time_left_follows_from_the_share_that_is_done() {
    let mut state = State::new(Extent::Share(0.0));
    assert_eq!(state.left(seconds(1)), None, "nothing is done");
    state.reach(0.25, "some".into(), seconds(100));
    assert_eq!(state.left(seconds(100)), Some(seconds(300)));
    assert_eq!(state.left(seconds(110)), Some(seconds(290)));
    // A run can last longer than planned, for example until its last failover is over.
    state.reach(1.5, "all".into(), seconds(600));
    assert_eq!(state.left(seconds(600)), Some(seconds(0)));
}

#[test]
fn a_line_names_the_steps_that_have_ended_the_time_left_and_the_step_that_runs() {
    let mut state = steps(99);
    let lines = (0..13).map(|step| state.begin(format!("row_{step}"), seconds(3 * step)));
    let lines: Vec<_> = lines.flatten().collect();
    assert_eq!(lines.len(), 13, "each step has its line");
    assert_eq!(lines[0], "0 of 99: row_0");
    assert_eq!(lines[12], "12 of 99, 4 minutes left: row_12");
}

#[test]
fn steps_that_run_at_once_are_counted_when_they_end() {
    let mut state = steps(3);
    let ended = state.end("row_02".into(), seconds(30));
    assert_eq!(ended.as_deref(), Some("1 of 3, 60 seconds left: row_02"));
    let ended = state.end("row_01".into(), seconds(40));
    assert_eq!(ended.as_deref(), Some("2 of 3, 20 seconds left: row_01"));
}

#[test]
fn lines_of_a_command_with_a_known_time_are_ten_seconds_apart() {
    let mut state = State::new(Extent::Share(0.0));
    let at = |tick: u32| Duration::from_millis(200) * tick;
    let lines = (1..=150).map(|tick| {
        let share = f64::from(tick) / 300.0;
        state.reach(share, format!("{tick} runs"), at(tick))
    });
    let lines: Vec<_> = lines.flatten().collect();
    let expected = [
        "after 10 seconds, 50 seconds left: 50 runs",
        "after 20 seconds, 40 seconds left: 100 runs",
        "after 30 seconds, 30 seconds left: 150 runs",
    ];
    assert_eq!(lines, expected);
}

/// Checks that each of two steps has one plain line. Does not check the time left, because it depends on the speed of
/// the machine.
fn assert_two_lines(text: &str) {
    let printable = |char: char| char == '\n' || !char.is_control();
    assert!(text.chars().all(printable), "{text:?}");
    let lines: Vec<_> = text.lines().collect();
    let [first, second] = lines[..] else {
        panic!("expected two lines: {text:?}");
    };
    assert_eq!(first, "0 of 2: first");
    assert!(second.starts_with("1 of 2, "), "{second}");
    assert!(second.ends_with(" left: second"), "{second}");
}

#[test]
fn plain_lines_have_no_escape_codes_and_are_written_once() {
    let captured = Captured::default();
    let progress = Progress::with_lines(steps(2), Box::new(captured.clone()));
    progress.begin("first");
    progress.begin("second");
    drop(progress);
    let text = captured.text();
    assert_two_lines(&text);
}

#[test]
fn a_bar_is_removed_while_the_command_prints_and_when_the_command_ends() {
    let captured = Captured::default();
    let target = ProgressDrawTarget::term_like(Box::new(captured.clone()));
    let progress = Progress::with_bar(steps(2), target);
    let Output::Bar(bar) = &progress.output else {
        panic!("the progress is drawn as a bar");
    };
    progress.begin("first");
    let drawn = captured.text();
    assert!(drawn.contains("0 of 2: first"), "{drawn:?}");
    bar.suspend(|| {
        let removed = captured.text();
        assert!(removed.ends_with("<clear>"), "{removed:?}");
    });
    assert!(captured.text().trim_end().ends_with("0 of 2: first"));
    progress.begin("second, whose name is longer than the terminal is wide");
    drop(progress);
    let text = captured.text();
    assert!(text.ends_with("<clear>"), "{text:?}");
    assert!(!text.contains("<up>"), "the bar has one line: {text:?}");
}

/// The command that [`a_command_whose_standard_error_is_a_pipe_writes_plain_lines`] starts in a process of its own.
#[test]
#[ignore = "another test starts this test in a separate process"]
fn a_command() {
    let progress = Progress::of_steps(2);
    progress.begin("first");
    suspend(|| println!("result of the first"));
    progress.begin("second");
}

#[test]
fn a_command_whose_standard_error_is_a_pipe_writes_plain_lines() {
    let this = std::env::current_exe().expect("a test knows its executable");
    let command = ["--exact", "tests::a_command", "--ignored", "--nocapture"];
    // These variables ask for colors even if the output is no terminal. Colors are escape codes.
    let output = Command::new(this)
        .args(command)
        .envs([("TERM", "xterm-256color"), ("CLICOLOR_FORCE", "1")])
        .output()
        .expect("the test can be started");
    let [results, progress] = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8(bytes).expect("the output is valid UTF-8"));
    assert_two_lines(&progress);
    assert!(results.contains("result of the first\n"), "{results:?}");
    assert!(!results.contains(" of 2"), "{results:?}");
}
