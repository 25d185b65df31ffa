//! Conversations as prompts.

mod answers;
mod chat_templates;
mod hostile_text;
mod idioms;
mod round_trips;
mod template_input;
mod template_jail;
mod turn_orders;
mod user_text;
