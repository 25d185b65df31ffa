//! Compiled grammars by content, bounded by number and bytes. Does not know how they are compiled.

use std::sync::{Arc, Mutex, PoisonError};

use super::{CompiledGrammar, ConstraintSpec, GrammarCompiler, GrammarError};

/// Bounds on a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLimits {
    /// Most grammars.
    pub max_grammars: usize,
    /// Most bytes of all grammars, as they estimate them; the one used last is kept whatever it takes.
    pub max_bytes: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { max_grammars: 64, max_bytes: 64 << 20 }
    }
}

/// The grammars of one tokenizer. Shared between threads; compiling holds up nobody else.
#[derive(Debug)]
pub struct GrammarCache {
    compiler: GrammarCompiler,
    limits: CacheLimits,
    /// The most recently used last. The specification is compared too: a client could look for equal keys.
    entries: Mutex<Vec<(ConstraintSpec, Arc<CompiledGrammar>)>>,
}

impl GrammarCache {
    /// An empty cache.
    pub fn new(compiler: GrammarCompiler, limits: CacheLimits) -> Self {
        Self { compiler, limits, entries: Mutex::new(Vec::new()) }
    }

    /// The grammar of a constraint, compiled if it is not there.
    ///
    /// # Errors
    /// Errors of [`GrammarCompiler::compile`]; errors are not kept.
    pub fn get(&self, spec: &ConstraintSpec) -> Result<Arc<CompiledGrammar>, GrammarError> {
        if let Some(grammar) = self.find(spec) {
            return Ok(grammar);
        }
        let grammar = self.compiler.compile(spec)?;
        // Another thread may have compiled the same meanwhile: outputs under one constraint share one automaton.
        if let Some(grammar) = self.find(spec) {
            return Ok(grammar);
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push((spec.clone(), grammar.clone()));
        self.shrink(&mut entries);
        Ok(grammar)
    }

    /// Number of grammars that it holds.
    pub fn len(&self) -> usize {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that all its grammars hold now: an estimate.
    pub fn n_bytes(&self) -> usize {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|(_, grammar)| grammar.n_bytes()).sum()
    }

    fn find(&self, spec: &ConstraintSpec) -> Option<Arc<CompiledGrammar>> {
        let key = spec.key();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let idx = entries.iter().position(|(other, grammar)| grammar.key() == key && other == spec)?;
        let entry = entries.remove(idx);
        let grammar = entry.1.clone();
        entries.push(entry);
        // Automata grow while they are used.
        self.shrink(&mut entries);
        Some(grammar)
    }

    fn shrink(&self, entries: &mut Vec<(ConstraintSpec, Arc<CompiledGrammar>)>) {
        let mut n_bytes: usize = entries.iter().map(|(_, grammar)| grammar.n_bytes()).sum();
        while entries.len() > 1
            && (entries.len() > self.limits.max_grammars || n_bytes > self.limits.max_bytes)
        {
            n_bytes = n_bytes.saturating_sub(entries.remove(0).1.n_bytes());
        }
    }
}
