//! The Lua interpreter of a thread, which the servers of that thread share. While a script runs, the state of its
//! server is stored in a thread-local variable, where `redis.call` finds it.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    mem,
};

use mlua::{BString, Either, Function, Lua, LuaOptions, StdLib, Table, Value, Variadic};

use super::{
    super::{
        Mode,
        commands::{Answer, Caller, find},
        data::Fault,
        resp::Reply,
        state::{Hash, OUT_OF_MEMORY, READ_ONLY, State},
    },
    convert::{error_to_lua, to_lua, to_reply, write_argument},
};

/// The interpreter and the functions compiled with it.
struct Engine {
    lua: Lua,
    environment: Table,
    globals: Table,
    run: Function,
    /// The compiled scripts; the keys are their hashes. No code iterates over the map, so its random order has no
    /// effect.
    compiled: RefCell<HashMap<Hash, Function>>,
}

/// A running script.
struct Running {
    state: State,
    caller: Caller,
    /// Whether the script has carried out a command that writes.
    wrote: bool,
}

thread_local! {
    static ENGINE: Engine = Engine::new().expect("the interpreter starts");
    static RUNNING: RefCell<Option<Running>> = const { RefCell::new(None) };
    static ARGUMENTS: Cell<Arguments> = const { Cell::new(Arguments { bytes: Vec::new(), ends: Vec::new() }) };
}

/// The arguments of a command, one after another. The buffers are reused for the next command to save allocations.
#[derive(Default)]
struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// The name of every script in error messages.
const CHUNK: &str = "@user_script";

impl Engine {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        // With this option, a `pcall` in a script does not catch a Rust panic of the simulated server.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(libraries, options)?;
        let send = lua.create_function(send)?;
        let sha1hex = lua.create_function(|lua, text: mlua::LuaString| {
            let digest = sha1_smol::Sha1::from(&*text.as_bytes())
                .digest()
                .to_string();
            lua.create_string(digest)
        })?;
        let located = lua.create_function(|lua, ()| Ok(current_line(lua)))?;
        let levels = ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"];
        let levels = lua.create_table_from(levels.into_iter().zip(0..))?;
        let prelude = lua.load(include_str!("prelude.lua")).set_name("@prelude");
        let (environment, globals, run) = prelude.call((send, sha1hex, located, levels))?;
        Ok(Self {
            lua,
            environment,
            globals,
            run,
            compiled: RefCell::default(),
        })
    }

    fn compile(&self, source: &[u8]) -> mlua::Result<Function> {
        // Redis wraps a script in a function in the same way.
        let source = [b"return function() ", source, b"\nend"].concat();
        let chunk = self.lua.load(source).set_name(CHUNK);
        chunk.set_environment(self.environment.clone()).call(())
    }

    fn run(
        &self,
        script: &Function,
        keys: &[&[u8]],
        values: &[&[u8]],
    ) -> mlua::Result<(bool, Value)> {
        self.globals.raw_set("KEYS", self.texts(keys)?)?;
        self.globals.raw_set("ARGV", self.texts(values)?)?;
        self.run.call(script)
    }

    fn texts(&self, texts: &[&[u8]]) -> mlua::Result<Table> {
        // Text is passed as a `&str`, and not as a `LuaString`, because mlua would store a reference to each
        // `LuaString` in a table of its own, which takes time. Bytes that are not UTF-8 are passed as a `BString`.
        let texts = texts.iter().map(|text| match str::from_utf8(text) {
            Ok(text) => Either::Left(text),
            Err(_) => Either::Right(BString::from(*text)),
        });
        self.lua.create_sequence_from(texts)
    }
}

/// Returns the line that the running script has reached, or `None` if no script runs.
fn current_line(lua: &Lua) -> Option<usize> {
    (1..).find_map(|level| {
        let line = lua.inspect_stack(level, |frame| {
            let is_script = frame.source().source.as_deref() == Some(CHUNK);
            frame.current_line().filter(|_| is_script)
        });
        // The search for the line ends at the first stack level without a frame.
        line.map_or(Some(None), |line| line.map(Some))
    })?
}

pub(super) fn is_compiled(hash: &Hash) -> bool {
    ENGINE.with(|engine| engine.compiled.borrow().contains_key(hash))
}

pub(super) fn compile(hash: &Hash, source: &[u8]) -> Result<(), Fault> {
    ENGINE.with(|engine| match engine.compile(source) {
        Ok(script) => {
            engine.compiled.borrow_mut().insert(*hash, script);
            Ok(())
        }
        Err(error) => {
            let text = match error {
                mlua::Error::SyntaxError { message, .. } => message,
                error => error.to_string(),
            };
            Err(format!("ERR Error compiling script (new function): {text}").into())
        }
    })
}

/// Runs a compiled script.
pub(super) fn run(
    state: &mut State,
    caller: Caller,
    hash: &Hash,
    keys: &[&[u8]],
    values: &[&[u8]],
) -> Answer {
    ENGINE.with(|engine| {
        let script = engine.compiled.borrow().get(hash).cloned();
        let script = script.expect("the script is compiled");
        RUNNING.set(Some(Running {
            state: mem::take(state),
            caller,
            wrote: false,
        }));
        let result = engine.run(&script, keys, values);
        *state = RUNNING
            .take()
            .expect("the running script is stored until it ends")
            .state;
        match result {
            Ok((true, value)) => Ok(to_reply(&value, 0)),
            Ok((false, error)) => Err(failed(hash, &error)),
            Err(error) => Err(format!("ERR {error}").into()),
        }
    })
}

/// Returns the error reply for a script that has raised this error.
fn failed(hash: &Hash, error: &Value) -> Fault {
    let Value::Table(error) = error else {
        return "ERR execution failure".into();
    };
    let text = error.raw_get::<mlua::LuaString>("err");
    let text = text.map(|text| text.to_string_lossy()).unwrap_or_default();
    match error.raw_get::<Option<usize>>("line") {
        Ok(Some(line)) => {
            let hash = String::from_utf8_lossy(hash);
            format!("{text} script: {hash}, on {CHUNK}:{line}.").into()
        }
        _ => text.into(),
    }
}

/// Carries out a command of a script. Returns its reply, or nil and an error.
fn send(lua: &Lua, values: Variadic<Value>) -> mlua::Result<(Value, Option<Table>)> {
    let mut arguments = ARGUMENTS.take();
    let answer = if read(&mut arguments, &values) {
        let mut start = 0;
        let args = arguments.ends.iter().map(|end| {
            let arg = &arguments.bytes[start..*end];
            start = *end;
            arg
        });
        let args: Vec<&[u8]> = args.collect();
        RUNNING.with_borrow_mut(|running| match running {
            Some(running) => running.carry_out(&args),
            None => Err("ERR no script runs".into()),
        })
    } else {
        Err("ERR Lua redis lib command arguments must be strings or integers".into())
    };
    ARGUMENTS.set(arguments);
    match answer {
        Ok(Reply::Error(error)) | Err(error) => Ok((Value::Nil, Some(error_to_lua(lua, &error)?))),
        Ok(reply) => Ok((to_lua(lua, &reply)?, None)),
    }
}

fn read(arguments: &mut Arguments, values: &[Value]) -> bool {
    let Arguments { bytes, ends } = arguments;
    bytes.clear();
    ends.clear();
    values.iter().all(|value| {
        let is_text = write_argument(bytes, value);
        ends.push(bytes.len());
        is_text
    })
}

impl Running {
    fn carry_out(&mut self, args: &[&[u8]]) -> Answer {
        if args.is_empty() {
            return Err("ERR Please specify at least one argument for this redis lib call".into());
        }
        let command = find(args);
        let command = command.map_err(|_| "ERR Unknown Redis command called from script")?;
        if !command.takes(args.len()) {
            return Err("ERR Wrong number of args calling Redis command from script".into());
        }
        if !command.is_allowed_in_scripts() {
            return Err("ERR This Redis command is not allowed from script".into());
        }
        self.state.route_in_script(self.caller, command, args)?;
        if command.writes() && self.state.is_read_only() {
            return Err(READ_ONLY);
        }
        // Even if the memory is full, a script that has already written is allowed to write more, so that it can finish
        // its work.
        if command.grows() && self.state.mode == Mode::OutOfMemory && !self.wrote {
            return Err(OUT_OF_MEMORY);
        }
        self.wrote |= command.writes();
        command.run(&mut self.state, self.caller, args)
    }
}
