"""Size limits of the HTTP surface, each a documented constant. Limits that depend on the model are the frontend's."""

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_N = 1024  # continuations of one prompt
MAX_CHOICES = 8192  # prompts times n, of one HTTP request
MAX_TOP_LOGPROBS = 128  # alternatives at one position; chats have their own limit, which is OpenAI's
MAX_CHAT_TOP_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 1024  # that one request may have scored at each position
MAX_EMBED_VALUES = 1 << 22  # numbers in input_embeds, of one HTTP request
MAX_RID_CHARS = 256
MAX_REQUEST_ID_CHARS = 128  # of the x-request-id header
HEALTH_GENERATE_TIMEOUT_S = 20.0
MAX_FLUSH_TIMEOUT_S = 600.0
MAX_STORED_RESPONSES = 1024  # with --enable-response-store; the oldest ones are forgotten
MAX_MESSAGES = 8192  # of one conversation
MAX_SESSIONS = 1024  # open at once
MAX_TURNS = 1024  # kept of one session
