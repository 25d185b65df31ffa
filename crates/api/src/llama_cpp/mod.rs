//! llama.cpp's endpoint for fill-in-the-middle completion in editors, `POST /infill`.

mod request;
mod response;
mod writer;

use serde::Serialize;

use crate::dialect::{Dialect, Request};
use crate::error::ApiError;
use crate::field::ReadOptions;

pub use request::INFILL_FIELDS;

/// `POST /infill`.
#[derive(Debug, Clone, Copy)]
pub struct InfillEndpoint;

impl Dialect for InfillEndpoint {
    fn parse(&self, body: &[u8], options: &ReadOptions) -> Result<Request, ApiError> {
        let spec = request::parse(body, options)?;
        Ok(Request { spec, view: Box::new(writer::InfillView) })
    }

    fn error_body(&self, error: &ApiError) -> Vec<u8> {
        serde_json::to_vec(&ErrorObject::new(error)).expect("strings always serialise")
    }
}

/// An error in llama.cpp's form, whose code is the status. The parameter, and the reason, which is the code
/// of other APIs, are additions to that form.
#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    error: ErrorFields<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorFields<'a> {
    code: u16,
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    reason: &'static str,
}

impl<'a> ErrorObject<'a> {
    fn new(error: &'a ApiError) -> Self {
        let (code, r#type) = (error.status().as_u16(), error.error_type().as_str());
        let (message, param, reason) = (error.message(), error.param(), error.code());
        Self { error: ErrorFields { code, message, r#type, param, reason } }
    }
}
