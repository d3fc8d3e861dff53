// In a search an option is a word: without this, `--restarts` would exclude all pages with "restarts".
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") {
    message = { ...message, data: message.data.replace(/(^|\s)-+/g, "$1") };
  }
  return post.call(this, message, ...rest);
};
